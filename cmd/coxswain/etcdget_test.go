package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/cmd/coxswain/datadir"
	"github.com/coxswain-dev/coxswain/storage"
)

// encryptionFile writes a configuration that encrypts Secrets with a key of 32 equal bytes, and returns its path.
func encryptionFile(t *testing.T, key string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "encryption.yaml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, "{apiVersion: apiserver.config.k8s.io/v1, "+
		"kind: EncryptionConfiguration, resources: [{resources: [secrets], providers: [{aesgcm: {keys: "+
		"[{name: %s, secret: %s=}]}}]}]}", strings.ToLower(key), strings.Repeat(key, 43)), 0o600))
	return file
}

// storedObjects returns the data directory of a server that has stored the given documents.
func storedObjects(t *testing.T, encryption string, documents map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	f := &serverFlags{dataDir: dir}
	f.encryption.file = encryption
	backend, err := f.openEtcd(t.Context())
	require.NoError(t, err)
	backend, _, err = f.encrypt(t.Context(), backend)
	require.NoError(t, err)
	for path, document := range documents {
		key, err := storage.ParseKey(path)
		require.NoError(t, err)
		_, err = backend.Commit(t.Context(), []storage.Write{{Op: storage.Create, Key: key, Value: []byte(document)}})
		require.NoError(t, err)
	}
	require.NoError(t, backend.Close())
	return dir
}

func TestEtcdGet_ReadsEncryptedObjects(t *testing.T) {
	file := encryptionFile(t, "A")
	const secret = `{"kind":"Secret","metadata":{"name":"db","namespace":"default"},"data":{"a":"Yg=="}}`
	documents := map[string]string{"core/secrets/default/db": secret, "core/secretsabound/default/x": `{"kind":"X"}`,
		"core/namespaces/default": `{"kind":"Namespace"}`, "claims/nodeports/30000": `{}`}
	for i := range 2 * page {
		documents[fmt.Sprintf("core/configmaps/default/c%04d", i)] = fmt.Sprintf(`{"kind":"ConfigMap","data":{"n":"%d"}}`, i)
	}
	dir := storedObjects(t, file, documents)
	snapshot := filepath.Join(t.TempDir(), "backup.db")
	out, err := etcdCommand(t, "snapshot", "save", snapshot, "--data-dir", dir)
	require.NoError(t, err, out)
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)

	for _, from := range [][]string{{"--data-dir", dir}, {"--snapshot", snapshot}} {
		get := func(args ...string) (string, error) {
			return etcdCommand(t, append(append([]string{"get"}, from...), args...)...)
		}
		out, err := get("-o", "name", "--encryption-provider-config", file)
		require.NoError(t, err)
		require.Len(t, strings.Fields(out), len(documents)-1, "all except the servers' own keys")
		out, err = get("core/secrets", "-o", "json", "--encryption-provider-config", file)
		require.NoError(t, err)
		require.Equal(t, secret+"\n", out, "but no objects with a longer resource name")
		out, err = get("core/secrets/default/db", "core/namespaces/", "--encryption-provider-config", file)
		require.NoError(t, err)
		require.Equal(t, "---\ndata:\n  a: Yg==\nkind: Secret\nmetadata:\n  name: db\n  namespace: default\n"+
			"---\nkind: Namespace\n", out)

		out, err = get("-o", "name")
		require.ErrorContains(t, err, "core/secrets/default/db is encrypted (k8s:enc:aesgcm:v1:a:): decrypting it needs")
		require.Contains(t, out, "core/configmaps/default/c0999\n", "the others are printed")
		out, err = get("core", "-o", "name", "--encryption-provider-config", encryptionFile(t, "B"))
		require.ErrorContains(t, err, "core/secrets/default/db cannot be read: k8s:enc:aesgcm:v1:a:")
		require.Contains(t, out, "core/namespaces/default\n")
		_, err = get("core/secrets/default/other", "--encryption-provider-config", file)
		require.ErrorContains(t, err, "no object is stored at core/secrets/default/other")
	}
	left, err := os.ReadDir(temp)
	require.NoError(t, err)
	require.Empty(t, left, "temporary files could contain Secrets")
}

func TestEtcdGet_ReportsErrors(t *testing.T) {
	t.Parallel()
	dir := storedObjects(t, encryptionFile(t, "A"), nil)
	unlock, err := datadir.Lock(dir)
	require.NoError(t, err)
	defer unlock()
	bad := filepath.Join(t.TempDir(), "bad.db")
	require.NoError(t, os.WriteFile(bad, []byte("no database"), 0o600))
	for want, args := range map[string][]string{
		"in use":                           {"--data-dir", dir},
		"save a snapshot and read that":    {"--data-dir", dir},
		"no etcd is embedded there":        {"--data-dir", t.TempDir()},
		"not an intact snapshot":           {"--snapshot", bad},
		"no such file":                     {"--snapshot", bad + ".none"},
		"not together with --etcd-servers": {"--snapshot", bad, "--etcd-servers", "http://127.0.0.1:1"},
		`--output: "wide" is none of yaml`: {"-o", "wide"},
		"--encryption-provider-config: enc": {"--data-dir", storedObjects(t, encryptionFile(t, "A"), nil),
			"--encryption-provider-config", bad + ".none"},
	} {
		_, err := etcdCommand(t, append([]string{"get"}, args...)...)
		require.ErrorContains(t, err, want)
	}
}
