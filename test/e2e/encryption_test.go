//go:build e2e

package e2e

import (
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/testenv/kmstest"
)

// pluginEnv selects the KMS plugin instead of the tests.
const pluginEnv = "COXSWAIN_TEST_KMS_PLUGIN_IN"

func init() {
	if dir := os.Getenv(pluginEnv); dir != "" {
		fmt.Fprintln(os.Stderr, kmstest.Serve(dir))
		os.Exit(1)
	}
}

// startPlugin runs a KMS plugin as a process of its own.
func startPlugin(t *testing.T, dir string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(os.Args[0]), exited: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), pluginEnv+"="+dir)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	require.NoError(t, p.cmd.Start())
	go func() {
		p.err = p.cmd.Wait()
		close(p.exited)
	}()
	t.Cleanup(p.kill)
	return p
}

// The secrets of these tests contain this value, and in JSON its base64.
const (
	planted        = "planted-plaintext"
	plantedEncoded = "cGxhbnRlZC1wbGFpbnRleHQ="
)

// requirePlaintext searches the files of a stopped etcd, including its log, for the planted value.
func requirePlaintext(t *testing.T, dir string, found bool) {
	t.Helper()
	var in []string
	require.NoError(t, filepath.WalkDir(filepath.Join(dir, "etcd"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		if strings.Contains(string(content), plantedEncoded) || strings.Contains(string(content), planted) {
			in = append(in, path)
		}
		return err
	}))
	require.Equal(t, found, len(in) > 0, "%v", in)
}

// encryptSecrets writes a configuration for secrets.
func encryptSecrets(t *testing.T, file string, providers ...string) {
	t.Helper()
	text := fmt.Sprintf("{apiVersion: apiserver.config.k8s.io/v1, kind: EncryptionConfiguration, resources: "+
		"[{resources: [secrets], providers: [%s]}]}", strings.Join(providers, ", "))
	require.NoError(t, os.WriteFile(file+".new", []byte(text), 0o600))
	require.NoError(t, os.Rename(file+".new", file))
}

const (
	gcmOne  = "aesgcm: {keys: [{name: one, secret: AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=}]}"
	cbcTwo  = "aescbc: {keys: [{name: two, secret: Hx4dHBsaGRgXFhUUExIREA8ODQwLCgkIBwYFBAMCAQA=}]}"
	boxNine = "secretbox: {keys: [{name: nine, secret: //////////////////////////////////////////8=}]}"
	asItIs  = "identity: {}"
)

func (c *cluster) plant(names ...string) {
	c.t.Helper()
	for _, name := range names {
		c.run(kubectl, "create", "secret", "generic", name, "--from-literal=a="+planted)
	}
}

func (c *cluster) secret(name string) (string, error) {
	s, err := c.client.CoreV1().Secrets("default").Get(c.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	return string(s.Data["a"]), nil
}

// TestEncryption_RotatesAsDocumented encrypts an unencrypted cluster, rotates to another key while the server runs,
// rewrites by kubectl and by a StorageVersionMigration, and removes the old key.
func TestEncryption_RotatesAsDocumented(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	c := up(t, dir, "--nodes", "0")
	c.plant("before")
	c.server.interrupt()
	requirePlaintext(t, dir, true)

	file := filepath.Join(filepath.Dir(dir), "encryption.yaml")
	encryptSecrets(t, file, gcmOne, asItIs)
	flags := []string{"--nodes", "0", "--encryption-provider-config", file,
		"--encryption-provider-config-automatic-reload"}
	c = up(t, dir, flags...)
	c.plant("after")
	rewrite := func() string {
		return c.run("sh", "-c", fmt.Sprintf("%[1]s get secrets -A -o json | %[1]s replace -f -", kubectl))
	}
	require.Contains(t, rewrite(), "secret/before replaced")

	encryptSecrets(t, file, cbcTwo, gcmOne)
	reloads := func() string {
		_, body := c.get("/metrics")
		for line := range strings.Lines(body) {
			if strings.HasPrefix(line, "apiserver_encryption_config_controller_automatic_reloads_total") {
				return line
			}
		}
		return ""
	}
	eventually(t, time.Minute, "the file is in force", func() bool { return strings.HasSuffix(reloads(), " 1\n") })
	c.migrateSecrets()
	encryptSecrets(t, file, cbcTwo)
	eventually(t, time.Minute, "the old key is gone", func() bool { return strings.HasSuffix(reloads(), " 2\n") })
	c.server.interrupt()

	c = up(t, dir, flags...)
	c.run(kubectl, "get", "secrets", "-A")
	for _, name := range []string{"before", "after"} {
		value, err := c.secret(name)
		require.NoError(t, err)
		require.Equal(t, planted, value)
	}
	c.restoreElsewhere(dir, file)
}

func (c *cluster) migrateSecrets() {
	c.t.Helper()
	manifest := filepath.Join(c.t.TempDir(), "migration.yaml")
	require.NoError(c.t, os.WriteFile(manifest, []byte(`apiVersion: storagemigration.k8s.io/v1
kind: StorageVersionMigration
metadata: {name: secrets}
spec: {resource: {group: "", resource: secrets}}
`), 0o600))
	c.run(kubectl, "apply", "-f", manifest)
	c.run(kubectl, "wait", "--for=condition=Succeeded", "storageversionmigration/secrets", "--timeout=60s")
}

// restoreElsewhere takes a snapshot, which must not contain plain text, and serves it from another folder. It then
// deletes one Secret, which must be recreated automatically.
func (c *cluster) restoreElsewhere(dir, file string) {
	c.t.Helper()
	snapshot := filepath.Join(c.t.TempDir(), "snapshot")
	save := start(c.t, "etcd", "snapshot", "save", snapshot, "--data-dir", dir)
	save.waitExit(time.Minute)
	require.NoError(c.t, save.err, save.out.String())
	other := dataDir(c.t)
	restore := start(c.t, "etcd", "snapshot", "restore", snapshot, "--data-dir", other)
	restore.waitExit(time.Minute)
	require.NoError(c.t, restore.err, restore.out.String())
	restored := up(c.t, other, "--nodes", "0", "--encryption-provider-config", file)
	restored.run(kubectl, "delete", "secret", "before")
	restored.run("sh", "-c", fmt.Sprintf("%s etcd get --snapshot %s --encryption-provider-config %s "+
		"core/secrets/default/before | %s create -f -", coxswain, snapshot, file, kubectl))
	for _, name := range []string{"before", "after"} {
		value, err := restored.secret(name)
		require.NoError(c.t, err)
		require.Equal(c.t, planted, value)
	}
}

// TestEncryption_StoresNoPlainText encrypts from the first start on, then starts with another key and without
// any.
func TestEncryption_StoresNoPlainText(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	file := filepath.Join(filepath.Dir(dir), "encryption.yaml")
	encryptSecrets(t, file, gcmOne)
	c := up(t, dir, "--nodes", "0", "--encryption-provider-config", file)
	c.plant("a")
	c.server.interrupt()
	requirePlaintext(t, dir, false)

	encryptSecrets(t, file, boxNine)
	for _, args := range [][]string{{"--encryption-provider-config", file}, nil} {
		c = up(t, dir, append([]string{"--nodes", "0"}, args...)...)
		_, err := c.secret("a")
		require.ErrorContains(t, err, "k8s:enc:aesgcm:v1:one:")
		code, body := c.get("/api/v1/namespaces/default/secrets")
		require.Equal(t, http.StatusInternalServerError, code)
		require.Contains(t, body, "failed to read one or more secrets from the storage")
		c.run(kubectl, "get", "configmaps", "-A")
		c.plant("b" + fmt.Sprint(len(args)))
		value, err := c.secret("b" + fmt.Sprint(len(args)))
		require.NoError(t, err)
		require.Equal(t, planted, value)
		c.server.interrupt()
	}
}

// TestEncryption_SurvivesAKillOfThePlugin uses a KMS v2 plugin that is built on the module k8s.io/kms.
func TestEncryption_SurvivesAKillOfThePlugin(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	keys := filepath.Dir(dir)
	file := filepath.Join(keys, "encryption.yaml")
	encryptSecrets(t, file, fmt.Sprintf("kms: {apiVersion: v2, name: plugin, endpoint: 'unix://%s', timeout: 2s}",
		filepath.Join(keys, kmstest.Socket)))
	plugin := startPlugin(t, keys)
	eventually(t, time.Minute, "the plugin listens", func() bool {
		_, err := os.Stat(filepath.Join(keys, kmstest.Socket))
		return err == nil
	})
	c := up(t, dir, "--nodes", "0", "--encryption-provider-config", file)
	c.plant("a")
	plugin.kill()
	eventually(t, time.Minute, "/readyz says so", func() bool {
		code, body := c.get("/readyz?verbose")
		return code == http.StatusInternalServerError && strings.Contains(body, "[-]kms-providers failed")
	})
	value, err := c.secret("a")
	require.NoError(t, err, "reads still work")
	require.Equal(t, planted, value)
	c.plant("b") // with the existing seed
	c.server.interrupt()
	requirePlaintext(t, dir, false)

	// If the server starts without its plugin, it serves all other resources, and the secrets once the plugin runs.
	p := start(t, "up", "--data-dir", dir, "--secure-port", "0", "--nodes", "0", "--encryption-provider-config", file)
	eventually(t, time.Minute, "the server serves", func() bool { return strings.Contains(p.out.String(), " serves ") })
	c = connect(t, filepath.Join(dir, "admin.kubeconfig"))
	c.server = p
	eventually(t, time.Minute, "the error of the secret", func() bool {
		_, err := c.secret("a")
		return err != nil && strings.Contains(err.Error(), "k8s:enc:kms:v2:plugin:")
	})
	c.run(kubectl, "get", "configmaps", "-A")
	startPlugin(t, keys)
	eventually(t, time.Minute, "the secrets can be read", func() bool {
		value, err := c.secret("b")
		return err == nil && value == planted
	})
	eventually(t, time.Minute, "/readyz", func() bool {
		code, _ := c.get("/readyz/kms-provider-0")
		return code == http.StatusOK
	})
	c.plant("c")
}
