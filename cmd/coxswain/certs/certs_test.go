package certs

import (
	"bytes"
	"crypto/x509"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/coxswain-dev/coxswain/apiserver/pki"
	"github.com/coxswain-dev/coxswain/cmd/coxswain/datadir"
	"github.com/coxswain-dev/coxswain/controllers"
)

func certsCommand(t *testing.T, dir string, args ...string) (string, error) {
	t.Helper()
	cmd := New()
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

// contents returns all files below a directory by their paths, and requires that only the owner can access them.
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

func TestCerts_MakesMissingFilesAndKeepsOthers(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	out := mustCerts(t, dir, "--server", "https://api.example.com:7443", "--tls-san", "10.1.2.3", "--etcd-san",
		"etcd-0,10.1.2.4", "--nodes", "2", "--node-prefix", "node-,rack-2-")
	first := contents(t, dir)
	for _, name := range []string{
		"pki/ca.crt", "pki/ca.key", "pki/sa.key", "pki/sa.pub", "pki/apiserver.crt", "pki/apiserver.key",
		"pki/apiserver-kubelet-client.crt",
		"pki/apiserver-etcd-client.crt", "pki/etcd/ca.crt", "pki/etcd/ca.key", "pki/etcd/server.crt",
		"pki/etcd/peer.key", "pki/front-proxy-ca.crt", "pki/front-proxy-ca.key", "pki/front-proxy-client.crt",
		"pki/front-proxy-client.key", "pki/kubelet-serving-ca.crt", "pki/kubelet-serving-ca.key",
		"admin.kubeconfig", "controllers.kubeconfig", "scheduler.kubeconfig", "network.kubeconfig",
		"dns.kubeconfig", "ingress.kubeconfig", "node.kubeconfig", "rack-2.kubeconfig",
	} {
		require.Contains(t, first, filepath.FromSlash(name))
	}
	require.Equal(t, 15, strings.Count(out, "made "), out)

	cluster, err := pki.OpenCA(filepath.Join(dir, "pki"))
	require.NoError(t, err)
	server := certificateOf(t, dir, "apiserver")
	for _, host := range []string{"api.example.com", "10.1.2.3", "127.0.0.1", "localhost", "kubernetes.default.svc",
		"10.96.0.1"} {
		require.NoError(t, server.VerifyHostname(host))
	}
	require.Error(t, server.VerifyHostname("etcd-0"))
	_, err = server.Verify(x509.VerifyOptions{Roots: cluster.Pool()})
	require.NoError(t, err)
	member := certificateOf(t, dir, "etcd/peer")
	require.NoError(t, member.VerifyHostname("etcd-0"))
	_, err = member.Verify(x509.VerifyOptions{Roots: cluster.Pool()})
	require.Error(t, err, "etcd has a CA of its own: clients of the cluster are not clients of etcd")
	proxy := certificateOf(t, dir, "front-proxy-client")
	require.Equal(t, "front-proxy-client", proxy.Subject.CommonName)
	require.NoError(t, proxy.CheckSignatureFrom(certificateOf(t, dir, "front-proxy-ca")))
	require.Error(t, proxy.CheckSignatureFrom(cluster.Certificate()), "clients of the cluster are not front proxies")
	_, err = server.Verify(x509.VerifyOptions{Roots: cluster.Pool(),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	require.Error(t, err, "a serving certificate is not a client certificate")
	require.ElementsMatch(t, []string{"system:node:rack-2-0", "system:node:rack-2-1"}, usersOf(t, dir, "rack-2"))
	require.Len(t, usersOf(t, dir, "controllers"), 1+len(controllers.Accounts()))
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "controllers.kubeconfig"))
	require.NoError(t, err)
	require.Equal(t, "https://api.example.com:7443", config.Host)

	again := mustCerts(t, dir, "--nodes", "2", "--node-prefix", "node-,rack-2-", "--tls-san", "10.1.2.3")
	require.Contains(t, again, "nothing was changed")
	require.Equal(t, first, contents(t, dir))

	// Additional names are added, and broken or missing files are made again.
	require.NoError(t, os.Remove(filepath.Join(dir, "pki", "etcd", "server.key")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "scheduler.kubeconfig"), []byte("nonsense: ["), 0o600))
	out = mustCerts(t, dir, "--nodes", "3", "--tls-san", "more.example.com")
	require.Equal(t, "made apiserver\nmade etcd/server\nmade scheduler.kubeconfig\nmade node.kubeconfig\n", out)
	server = certificateOf(t, dir, "apiserver")
	require.NoError(t, server.VerifyHostname("more.example.com"))
	require.NoError(t, server.VerifyHostname("10.1.2.3"), "the certificate keeps its names")
	require.Len(t, usersOf(t, dir, "node"), 3)
	require.Equal(t, first["rack-2.kubeconfig"], contents(t, dir)["rack-2.kubeconfig"])
}

func TestCerts_RenewsAllExceptCAsAndServiceAccountKey(t *testing.T) {
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
	unchanged := map[string]bool{"ca.crt": true, "ca.key": true, "sa.key": true, "sa.pub": true, "front-proxy-ca.crt": true,
		"front-proxy-ca.key": true, "kubelet-serving-ca.crt": true, "kubelet-serving-ca.key": true}
	for name := range first {
		require.Equal(t, unchanged[filepath.Base(name)], second[name] == third[name], name)
	}
	require.Greater(t, time.Until(certificateOf(t, dir, "etcd/peer").NotAfter), 360*24*time.Hour)
	require.Len(t, usersOf(t, dir, "controllers"), 1+len(controllers.Accounts()))
	for name, user := range map[string]string{"controllers": "system:kube-controller-manager",
		"rack": "system:node:rack-0"} {
		config, err := clientcmd.LoadFromFile(filepath.Join(dir, name+".kubeconfig"))
		require.NoError(t, err)
		require.Equal(t, user, config.Contexts[config.CurrentContext].AuthInfo)
		require.Equal(t, "https://api.example.com:7443", config.Clusters["coxswain"].Server)
	}
	out := mustCerts(t, dir, "--renew", "--node-prefix", "rack-", "--server", "https://other.example.com")
	require.Equal(t, 14, strings.Count(out, "made "), out)
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
	require.Regexp(t, `(?m)^front-proxy-client +.* 364d +front-proxy-ca$`, out)
	require.Regexp(t, `(?m)^etcd/ca +.* 9y`, out)
	require.Regexp(t, `(?m)^front-proxy-ca +.* 9y`, out)
	_, err := certsCommand(t, dir, "check-expiration", "--fail-within", "72h")
	require.ErrorContains(t, err, "expired, or about to: scheduler.kubeconfig")
	_, err = certsCommand(t, t.TempDir(), "check-expiration")
	require.Error(t, err)
}

func TestCerts_DoesNotReplaceHalfOfACA(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"ca.key", "ca.crt", "etcd/ca.key", "etcd/ca.crt", "front-proxy-ca.key",
		"front-proxy-ca.crt", "kubelet-serving-ca.key", "kubelet-serving-ca.crt", "sa.key"} {
		dir := filepath.Join(t.TempDir(), "data")
		mustCerts(t, dir)
		gone := filepath.Join(dir, "pki", filepath.FromSlash(name))
		require.NoError(t, os.Remove(gone))
		before := contents(t, dir)
		_, err := certsCommand(t, dir)
		require.ErrorContains(t, err, "that others trust is not replaced", name)
		require.ErrorContains(t, err, gone)
		require.NoError(t, os.Symlink(filepath.Join(dir, "away"), gone))
		_, err = certsCommand(t, dir, "--renew")
		require.Error(t, err, "a link to a missing file")
		require.NoError(t, os.Remove(gone))
		require.Equal(t, before, contents(t, dir), name)
	}
}

func TestCerts_ReplacesCertificatesOfAnotherCAOnlyIfRenewing(t *testing.T) {
	t.Parallel()
	dir, other := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "data")
	mustCerts(t, dir)
	mustCerts(t, other)
	for _, name := range []string{"apiserver.crt", "apiserver.key", "sa.pub"} {
		content, err := os.ReadFile(filepath.Join(other, "pki", name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "pki", name), content, 0o600))
	}
	before := contents(t, dir)
	_, err := certsCommand(t, dir)
	require.ErrorContains(t, err, "sa.pub does not have the public key of")
	require.NoError(t, os.Remove(filepath.Join(dir, "pki", "sa.pub")))
	_, err = certsCommand(t, dir)
	require.ErrorContains(t, err,
		"apiserver is of another CA than pki/ca.crt: coxswain certs renew apiserver replaces it")
	require.Equal(t, before["pki/apiserver.key"], contents(t, dir)["pki/apiserver.key"])
	mustCerts(t, dir, "renew", "apiserver")
	require.Contains(t, mustCerts(t, dir), "nothing was changed")
}

func TestCerts_CorrectsFileModes(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	mustCerts(t, dir)
	for name, mode := range map[string]os.FileMode{"": 0o755, "pki": 0o750, "pki/etcd": 0o777, "pki/ca.key": 0o644,
		"pki/etcd/ca.key": 0o660, "admin.kubeconfig": 0o666} {
		require.NoError(t, os.Chmod(filepath.Join(dir, filepath.FromSlash(name)), mode))
	}
	mustCerts(t, dir)
	contents(t, dir) // checks the modes
}

func TestCerts_RejectsInvalidFlags(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"--server", "http://a"}, {"--validity", "9s"}, {"--nodes", "-1"},
		{"--node-prefix", "admin-"}, {"--service-cluster-ip-range", "x"}} {
		other := filepath.Join(t.TempDir(), "data")
		_, err := certsCommand(t, other, args...)
		require.ErrorContains(t, err, args[0])
		require.NoDirExists(t, other)
	}
}

func TestCerts_GivesEachComponentOnlyTheFilesItNeeds(t *testing.T) {
	t.Parallel()
	dir, parts := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "parts")
	args := []string{"--components-dir", parts, "--node-prefix", "rack-", "--nodes", "1"}
	mustCerts(t, dir, args...)
	names := func() []string {
		var all []string
		for name := range contents(t, parts) {
			all = append(all, filepath.ToSlash(name))
		}
		slices.Sort(all)
		return all
	}
	minimum := []string{
		"admin/admin.kubeconfig",
		"apiserver/apiserver-etcd-client.crt", "apiserver/apiserver-etcd-client.key",
		"apiserver/apiserver-kubelet-client.crt", "apiserver/apiserver-kubelet-client.key",
		"apiserver/apiserver.crt", "apiserver/apiserver.key", "apiserver/ca.crt", "apiserver/etcd/ca.crt",
		"apiserver/front-proxy-ca.crt", "apiserver/front-proxy-client.crt", "apiserver/front-proxy-client.key",
		"apiserver/kubelet-serving-ca.crt", "apiserver/sa.key",
		"controllers/ca.crt", "controllers/controllers.kubeconfig",
		"etcd/etcd/ca.crt", "etcd/etcd/peer.crt", "etcd/etcd/peer.key", "etcd/etcd/server.crt", "etcd/etcd/server.key",
		"rack/rack.kubeconfig", "scheduler/scheduler.kubeconfig",
	}
	require.Equal(t, minimum, names())
	whole, part := contents(t, dir), contents(t, parts)
	require.Equal(t, whole[filepath.Join("pki", "sa.key")], part[filepath.Join("apiserver", "sa.key")])
	mustCerts(t, dir, append(args, "--renew", "--component-signing")...)
	require.Equal(t, len(minimum)+4, len(names()))
	require.Contains(t, names(), "controllers/ca.key")
	require.Equal(t, contents(t, dir)["admin.kubeconfig"],
		contents(t, parts)[filepath.Join("admin", "admin.kubeconfig")])
	mustCerts(t, dir, args...)
	require.Equal(t, minimum, names(), "the keys are removed again")
	for _, wrong := range [][]string{{"--component-owner", "unknown=1"}, {"--component-owner", "etcd=root"},
		{"--node-prefix", "etcd-"}} {
		_, err := certsCommand(t, dir, append(slices.Clone(args), wrong...)...)
		require.ErrorContains(t, err, wrong[0])
	}
	// A component that owns its folder cannot make the command write outside it.
	elsewhere := t.TempDir()
	require.NoError(t, os.RemoveAll(filepath.Join(parts, "etcd", "etcd")))
	require.NoError(t, os.Symlink(elsewhere, filepath.Join(parts, "etcd", "etcd")))
	_, err := certsCommand(t, dir, args...)
	require.ErrorContains(t, err, "--components-dir: ")
	left, err := os.ReadDir(elsewhere)
	require.NoError(t, err)
	require.Empty(t, left)
	_, err = certsCommand(t, dir, "--component-signing")
	require.ErrorContains(t, err, "--components-dir")
}

// Earlier versions put the administrator into the group system:masters.
func TestCerts_ReplacesAdministratorInSystemMasters(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	mustCerts(t, dir)
	ca, err := pki.OpenCA(filepath.Join(dir, "pki"))
	require.NoError(t, err)
	cert, key, err := ca.Client("kubernetes-admin", "system:masters")
	require.NoError(t, err)
	old := pki.Kubeconfig("https://a:1", ca.PEM(), pki.User{Name: "kubernetes-admin", Cert: cert, Key: key})
	require.NoError(t, os.WriteFile(filepath.Join(dir, "admin.kubeconfig"), old, 0o600))
	require.Equal(t, "made admin.kubeconfig\n", mustCerts(t, dir))
	groups := func(name string) []string {
		certs, err := (&kubeconfigFile{base: name}).certificates(&certsFlags{dir: dir})
		require.NoError(t, err)
		require.Len(t, certs, 1)
		return certs[0].Subject.Organization
	}
	require.Equal(t, []string{"coxswain:cluster-admins"}, groups("admin"))
	require.Equal(t, []string{"system:masters"}, groups("super-admin"))
	require.Empty(t, certificateOf(t, dir, "apiserver-kubelet-client").Subject.Organization)
}

func TestCerts_GivesEachReplicaItsOwnSecrets(t *testing.T) {
	t.Parallel()
	dir, parts := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "parts")
	flags := []string{"--etcd-san", "one,two,three", "--nodes", "1", "--components-dir", parts, "--component-replicas",
		"etcd=3,apiserver=2,controllers=2,scheduler=2"}
	mustCerts(t, dir, flags...)
	files := contents(t, parts)
	holders := map[string][]string{} // of each key and kubeconfig
	for name, content := range files {
		if base := filepath.Base(name); strings.HasSuffix(base, ".key") || strings.HasSuffix(base, datadir.KubeconfigSuffix) {
			holders[content] = append(holders[content], name)
		}
	}
	for _, names := range holders {
		if len(names) > 1 {
			slices.Sort(names)
			require.Equal(t, []string{"apiserver-1/sa.key", "apiserver-2/sa.key"}, names, "API servers share the key of tokens")
		}
	}
	for _, name := range []string{"etcd-3/etcd/peer.key", "apiserver-2/apiserver.crt", "apiserver-2/etcd/ca.crt",
		"apiserver-1/front-proxy-client.key", "controllers-2/controllers.kubeconfig", "scheduler-1/scheduler.kubeconfig",
		"node/node.kubeconfig", "admin/admin.kubeconfig"} {
		require.Contains(t, files, filepath.FromSlash(name))
	}
	require.NoDirExists(t, filepath.Join(parts, "etcd"))
	member := certificateOf(t, dir, "etcd-2/etcd/server")
	require.NoError(t, member.VerifyHostname("two"))
	require.NoError(t, member.VerifyHostname("localhost"))
	require.Error(t, member.VerifyHostname("one"))

	require.Contains(t, mustCerts(t, dir, flags...), "nothing was changed")
	mustCerts(t, dir, "renew", "all")
	etcd, err := pki.OpenNamedCA(filepath.Join(dir, "pki", etcdCA), caNames[etcdCA])
	require.NoError(t, err)
	for _, name := range []string{"etcd-2/etcd/server", "apiserver-1/apiserver-etcd-client"} {
		_, err = certificateOf(t, dir, name).Verify(x509.VerifyOptions{Roots: etcd.Pool(),
			KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		require.NoError(t, err, name)
	}

	for args, words := range map[string]string{
		"--component-replicas=etcd=0":                       "etcd must be between 1 and 9",
		"--component-replicas=node=2":                       `"node" is not one of: apiserver, controllers`,
		"--component-replicas=etcd=3 --node-prefix=etcd-1-": "also the name of a component",
	} {
		_, err := certsCommand(t, filepath.Join(t.TempDir(), "data"), append(strings.Fields(args), "--components-dir",
			t.TempDir())...)
		require.ErrorContains(t, err, words)
	}
}
