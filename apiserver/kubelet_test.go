package apiserver_test

import (
	"crypto/tls"
	"net/http"
	"net/url"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/apiserver/proxy"
)

// kubeletClientOf returns a certificate of the cluster's CA for a user, like the one that the server presents to nodes.
func kubeletClientOf(t *testing.T, a *assembly, user string) (cert, key []byte) {
	t.Helper()
	cert, key, err := a.ca.Client(user, "system:masters")
	require.NoError(t, err)
	return cert, key
}

// TestKubeletClient_IsNoCredential presents the certificates with which API servers identify themselves to nodes to an
// API server: its own, with a custom name, and another server's.
func TestKubeletClient_IsNoCredential(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(), apiserver.Options{})
	cert, key := kubeletClientOf(t, a, "custom")
	pair, err := tls.X509KeyPair(cert, key)
	require.NoError(t, err)
	s := a.another(t, apiserver.Options{Kubelet: proxy.KubeletOptions{Certificate: &pair}})
	with := func(cert, key []byte) *server {
		config := rest.CopyConfig(s.config)
		config.CertData, config.KeyData = cert, key
		return connect(t, config)
	}
	for name, c := range map[string]*server{"its own": with(cert, key),
		"another's": with(kubeletClientOf(t, a, "kube-apiserver-kubelet-client"))} {
		require.Equal(t, http.StatusUnauthorized, c.get("/api").code, name)
	}
	with(kubeletClientOf(t, a, "someone")).get("/api").ok(http.StatusOK)
}

// TestProxy_NeverLeadsToTheServerItself creates nodes that report the server's address as their agent's, in several
// spellings (CVE-2022-3294).
func TestProxy_NeverLeadsToTheServerItself(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(), apiserver.Options{})
	cert, key := kubeletClientOf(t, a, "kube-apiserver-kubelet-client")
	pair, err := tls.X509KeyPair(cert, key)
	require.NoError(t, err)
	s := a.another(t, apiserver.Options{Kubelet: proxy.KubeletOptions{Certificate: &pair}})
	host, err := url.Parse(s.config.Host)
	require.NoError(t, err)
	port, err := strconv.Atoi(host.Port())
	require.NoError(t, err)
	for i, address := range []string{"127.0.0.1", "::ffff:127.0.0.1", "localhost"} {
		name := "evil-" + strconv.Itoa(i)
		kind := map[bool]string{true: "Hostname", false: "InternalIP"}[address == "localhost"]
		s.create(nodes, m{"metadata": m{"name": name}})
		s.patch(nodes+"/"+name+"/status", mergePatch, m{"status": m{
			"addresses":       []any{m{"type": kind, "address": address}},
			"daemonEndpoints": m{"kubeletEndpoint": m{"Port": port}}}}).ok(http.StatusOK)
		for _, path := range []string{"/proxy/version", ":" + host.Port() + "/proxy/version",
			"/proxy/api/v1/nodes/node-0/proxy/"} {
			answer := s.get(nodes + "/" + name + path)
			require.GreaterOrEqual(t, answer.code, 400, "%s%s: %s", address, path, answer.body)
			require.Contains(t, string(answer.body), "address not allowed", address)
		}
	}
}
