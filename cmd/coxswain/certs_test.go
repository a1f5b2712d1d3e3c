package main

import (
	"bytes"
	"crypto/x509"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/coxswain-dev/coxswain/apiserver/pki"
	"github.com/coxswain-dev/coxswain/controllers"
)

func certsCommand(t *testing.T, dir string, args ...string) (string, error) {
	t.Helper()
	cmd := newCerts()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(append(args, "--data-dir", dir))
	err := cmd.Execute()
	return out.String(), err
}

func mustCerts(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out, err := certsCommand(t, dir, args...)
	require.NoError(t, err, out)
	return out
}

// contents are all files below a directory, each of which must be for its owner alone.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		require.NoError(t, err)
		info, err := d.Info()
		require.NoError(t, err)
		if d.IsDir() {
			require.Zero(t, info.Mode().Perm()&0o077, "%s: %s", path, info.Mode())
			return nil
		}
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), path)
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		name, err := filepath.Rel(dir, path)
		require.NoError(t, err)
		all[name] = string(text)
		return nil
	}))
	return all
}

func certificateOf(t *testing.T, dir, name string) *x509.Certificate {
	t.Helper()
	cert, err := readCertificate(filepath.Join(dir, "pki", name+".crt"))
	require.NoError(t, err)
	return cert
}

func usersOf(t *testing.T, dir, name string) []string {
	t.Helper()
	config, err := clientcmd.LoadFromFile(filepath.Join(dir, name+".kubeconfig"))
	require.NoError(t, err)
	var users []string
	for user := range config.AuthInfos {
		users = append(users, user)
	}
	return users
}

func TestCerts_MakesWhatIsMissingAndKeepsTheRest(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	out := mustCerts(t, dir, "--server", "https://api.example.com:7443", "--tls-san", "10.1.2.3", "--etcd-san", "etcd-0,10.1.2.4", "--nodes", "2", "--node-prefix", "node-,rack-2-")
	first := contents(t, dir)
	for _, name := range []string{
		"pki/ca.crt", "pki/ca.key", "pki/sa.key", "pki/sa.pub", "pki/apiserver.crt", "pki/apiserver.key", "pki/apiserver-kubelet-client.crt",
		"pki/apiserver-etcd-client.crt", "pki/etcd/ca.crt", "pki/etcd/ca.key", "pki/etcd/server.crt", "pki/etcd/peer.key",
		"admin.kubeconfig", "controllers.kubeconfig", "scheduler.kubeconfig", "node.kubeconfig", "rack-2.kubeconfig",
	} {
		require.Contains(t, first, filepath.FromSlash(name))
	}
	require.Equal(t, 10, strings.Count(out, "made "), out)

	cluster, err := pki.OpenCA(filepath.Join(dir, "pki"))
	require.NoError(t, err)
	server := certificateOf(t, dir, "apiserver")
	for _, host := range []string{"api.example.com", "10.1.2.3", "127.0.0.1", "localhost", "kubernetes.default.svc", "10.96.0.1"} {
		require.NoError(t, server.VerifyHostname(host))
	}
	require.Error(t, server.VerifyHostname("etcd-0"))
	_, err = server.Verify(x509.VerifyOptions{Roots: cluster.Pool()})
	require.NoError(t, err)
	member := certificateOf(t, dir, "etcd/peer")
	require.NoError(t, member.VerifyHostname("etcd-0"))
	_, err = member.Verify(x509.VerifyOptions{Roots: cluster.Pool()})
	require.Error(t, err, "etcd's CA is another: no client of the cluster may be one of etcd")
	_, err = server.Verify(x509.VerifyOptions{Roots: cluster.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	require.Error(t, err, "a server's certificate is no client's")
	require.ElementsMatch(t, []string{"system:node:rack-2-0", "system:node:rack-2-1"}, usersOf(t, dir, "rack-2"))
	require.Len(t, usersOf(t, dir, "controllers"), 1+len(controllers.Accounts()))
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "controllers.kubeconfig"))
	require.NoError(t, err)
	require.Equal(t, "https://api.example.com:7443", config.Host)

	again := mustCerts(t, dir, "--nodes", "2", "--node-prefix", "node-,rack-2-", "--tls-san", "10.1.2.3")
	require.Contains(t, again, "nothing was changed")
	require.Equal(t, first, contents(t, dir))

	// What is asked for besides is added, and what is broken or gone is made again.
	require.NoError(t, os.Remove(filepath.Join(dir, "pki", "etcd", "server.key")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "scheduler.kubeconfig"), []byte("nonsense: ["), 0o600))
	out = mustCerts(t, dir, "--nodes", "3", "--tls-san", "more.example.com")
	require.Equal(t, "made apiserver\nmade etcd/server\nmade scheduler.kubeconfig\nmade node.kubeconfig\n", out)
	server = certificateOf(t, dir, "apiserver")
	require.NoError(t, server.VerifyHostname("more.example.com"))
	require.NoError(t, server.VerifyHostname("10.1.2.3"), "it keeps the names it had")
	require.Len(t, usersOf(t, dir, "node"), 3)
	require.Equal(t, first["rack-2.kubeconfig"], contents(t, dir)["rack-2.kubeconfig"])
}

func TestCerts_RenewsAllButTheAuthoritiesAndTheAccountsKey(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	mustCerts(t, dir, "--server", "https://api.example.com:7443", "--validity", "2h", "--node-prefix", "rack-")
	first := contents(t, dir)
	mustCerts(t, dir, "renew", "apiserver", "rack.kubeconfig")
	second := contents(t, dir)
	for name := range first {
		renewed := strings.HasPrefix(name, filepath.Join("pki", "apiserver.")) || name == "rack.kubeconfig"
		require.Equal(t, renewed, first[name] != second[name], name)
	}
	mustCerts(t, dir, "renew", "all")
	third := contents(t, dir)
	require.Len(t, third, len(first), "no file has been added")
	kept := map[string]bool{"ca.crt": true, "ca.key": true, "sa.key": true, "sa.pub": true}
	for name := range first {
		require.Equal(t, kept[filepath.Base(name)], second[name] == third[name], name)
	}
	require.Greater(t, time.Until(certificateOf(t, dir, "etcd/peer").NotAfter), 360*24*time.Hour)
	require.Len(t, usersOf(t, dir, "controllers"), 1+len(controllers.Accounts()))
	for name, user := range map[string]string{"controllers": "system:kube-controller-manager", "rack": "system:node:rack-0"} {
		config, err := clientcmd.LoadFromFile(filepath.Join(dir, name+".kubeconfig"))
		require.NoError(t, err)
		require.Equal(t, user, config.Contexts[config.CurrentContext].AuthInfo)
		require.Equal(t, "https://api.example.com:7443", config.Clusters["coxswain"].Server)
	}
	out := mustCerts(t, dir, "--renew", "--node-prefix", "rack-", "--server", "https://other.example.com")
	require.Equal(t, 9, strings.Count(out, "made "), out)
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "admin.kubeconfig"))
	require.NoError(t, err)
	require.Equal(t, "https://other.example.com", config.Host)

	_, err = certsCommand(t, dir, "renew", "nothing")
	require.ErrorContains(t, err, `there is no certificate or kubeconfig "nothing"`)
}

func TestCerts_ChecksExpiration(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	mustCerts(t, dir)
	mustCerts(t, dir, "renew", "scheduler.kubeconfig", "--validity", "48h")
	out := mustCerts(t, dir, "check-expiration")
	require.Regexp(t, `(?m)^CERTIFICATE +EXPIRES +RESIDUAL TIME +CERTIFICATE AUTHORITY$`, out)
	require.Regexp(t, `(?m)^apiserver +\w{3} \d\d, \d{4} \d\d:\d\d UTC +364d +ca$`, out)
	require.Regexp(t, `(?m)^etcd/server +.* 364d +etcd/ca$`, out)
	require.Regexp(t, `(?m)^scheduler.kubeconfig +.* 1d +ca$`, out)
	require.Regexp(t, `(?m)^etcd/ca +.* 9y`, out)
	_, err := certsCommand(t, dir, "check-expiration", "--fail-within", "72h")
	require.ErrorContains(t, err, "expired, or about to: scheduler.kubeconfig")
	_, err = certsCommand(t, t.TempDir(), "check-expiration")
	require.Error(t, err)
}

func TestCerts_ReplacesNoAuthority(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	mustCerts(t, dir)
	require.NoError(t, os.Remove(filepath.Join(dir, "pki", "ca.key")))
	before := contents(t, dir)
	_, err := certsCommand(t, dir)
	require.ErrorContains(t, err, "a CA that others trust is not replaced")
	require.Equal(t, before, contents(t, dir))
	for _, args := range [][]string{{"--server", "http://a"}, {"--validity", "1m"}, {"--nodes", "-1"}, {"--node-prefix", "admin-"}, {"--service-cluster-ip-range", "x"}} {
		other := filepath.Join(t.TempDir(), "data")
		_, err := certsCommand(t, other, args...)
		require.ErrorContains(t, err, args[0])
		require.NoDirExists(t, other)
	}
}
