package encryption

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/coxswain-dev/coxswain/storage"
	"github.com/coxswain-dev/coxswain/storage/memory"
	"github.com/coxswain-dev/coxswain/testenv/kmstest"
	"github.com/coxswain-dev/coxswain/testenv/leak"
)

// pluginEnv is the environment variable that makes the test program run as a KMS plugin.
const pluginEnv = "COXSWAIN_TEST_KMS_PLUGIN_IN"

func TestMain(m *testing.M) {
	if dir := os.Getenv(pluginEnv); dir != "" {
		fmt.Fprintln(os.Stderr, kmstest.Serve(dir))
		os.Exit(1)
	}
	leak.VerifyTestMain(m)
}

const patience = time.Minute

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// configure writes a configuration with one rule for secrets.
func configure(t testing.TB, file, providers string) {
	t.Helper()
	write(t, file, "- resources: [secrets]\n  providers:\n"+indent(providers))
}

func write(t testing.TB, file, resources string) {
	t.Helper()
	text := "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n" + resources
	require.NoError(t, os.WriteFile(file+".new", []byte(text), 0o600))
	require.NoError(t, os.Rename(file+".new", file))
}

func indent(lines string) string {
	return "  " + strings.ReplaceAll(strings.TrimSpace(lines), "\n", "\n  ") + "\n"
}

// Keys in base64, and providers that use them.
const (
	key1 = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
	key2 = "c2VjcmV0IGlzIHNlY3VyZSwgb3IgaXMgaXQ/ISEhISE="
)

func gcmKeys(keys ...string) string {
	text := "- aesgcm:\n    keys:\n"
	for i := 0; i < len(keys); i += 2 {
		text += fmt.Sprintf("    - {name: %s, secret: %q}\n", keys[i], keys[i+1])
	}
	return text
}

const identity = "- identity: {}\n"

// startBelow starts a backend that several servers share.
func startBelow(t testing.TB) storage.Backend {
	t.Helper()
	b := memory.New(memory.Options{})
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

// shared is a backend that its users cannot close.
type shared struct{ storage.Backend }

func (shared) Close() error { return nil }

func configFile(t testing.TB) string { return filepath.Join(t.TempDir(), "encryption.yaml") }

// open wraps a backend with encryption.
func open(t testing.TB, below storage.Backend, o Options) *Backend {
	t.Helper()
	if o.Log == nil {
		o.Log = quiet
	}
	b, err := New(testContext(t), shared{below}, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

// openStore opens a store of secrets.
func openStore(t testing.TB, b storage.Backend) (*storage.Store, *storage.Collection) {
	t.Helper()
	s, err := storage.Open(testContext(t), b, storage.Options{Synchronous: true, Log: quiet})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s, s.Collection("core/secrets", storage.CollectionOptions{})
}

func secretKey(name string) storage.Key {
	return storage.Key{Collection: "core/secrets", Namespace: "default", Name: name}
}

func secret(name string) []byte {
	return fmt.Appendf(nil, `{"metadata":{"name":%q,"namespace":"default"},"data":{"password":"c2VjcmV0"}}`, name)
}

func put(t testing.TB, b storage.Backend, key storage.Key, document []byte) int64 {
	t.Helper()
	outcome, err := b.Commit(testContext(t), []storage.Write{{Op: storage.Update, Key: key, Value: document,
		Expect: storage.AnyRevision}})
	require.NoError(t, err)
	return outcome.Revision
}

func get(t testing.TB, b storage.Backend, key storage.Key) storage.KV {
	t.Helper()
	result, err := b.Range(testContext(t), storage.RangeRequest{Prefix: key.String(), Limit: 1})
	require.NoError(t, err)
	require.Len(t, result.KVs, 1)
	return result.KVs[0]
}

// startPlugin starts a plugin in its own process. It returns the provider for it, and a function that kills it.
func startPlugin(t testing.TB, dir string) (provider string, kill func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), pluginEnv+"="+dir)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	killed := false
	kill = func() {
		if !killed {
			killed = true
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	t.Cleanup(kill)
	return fmt.Sprintf("- kms: {apiVersion: v2, name: plugin, endpoint: \"unix://%s\", timeout: 2s}\n",
		filepath.Join(dir, kmstest.Socket)), kill
}

// socketDir creates a folder with a path short enough for a socket.
func socketDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "kms")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func newClock() *clocktesting.FakeClock { return clocktesting.NewFakeClock(time.Now()) }
