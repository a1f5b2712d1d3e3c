package kubeconfig_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/apiserver/pki"
	"github.com/coxswain-dev/coxswain/cmd/coxswain/kubeconfig"
)

// serveIdentity runs a server that responds with its client's common name or authorization header.
func serveIdentity(t *testing.T, ca *pki.CA) *httptest.Server {
	t.Helper()
	cert, err := ca.Server("127.0.0.1")
	require.NoError(t, err)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, cert := range r.TLS.PeerCertificates {
			_, _ = fmt.Fprint(w, cert.Subject.CommonName)
		}
		_, _ = fmt.Fprint(w, r.Header.Get("Authorization"))
	}))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequestClientCert}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// replace writes a file as kubectl does: readers never see half of it.
func replace(t *testing.T, file string, content []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(file+".new", content, 0o600))
	require.NoError(t, os.Rename(file+".new", file))
}

func TestConfig_UsesRenewedCredentials(t *testing.T) {
	t.Parallel()
	ca, err := pki.NewCA()
	require.NoError(t, err)
	server := serveIdentity(t, ca)
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	identify := func(user string) {
		cert, key, err := ca.Client(user)
		require.NoError(t, err)
		replace(t, in("key"), key)
		replace(t, in("cert"), cert)
	}
	write := func(user string) {
		replace(t, in("kubeconfig"), fmt.Appendf(nil, `{apiVersion: v1, kind: Config, current-context: c,
			contexts: [{name: c, context: {cluster: c, user: u}}],
			clusters: [{name: c, cluster: {server: %q, certificate-authority: %q}}],
			users: [{name: u, user: %s}]}`, server.URL, in("ca"), user))
	}
	replace(t, in("ca"), ca.PEM())
	identify("first")
	write(fmt.Sprintf("{client-certificate: %q, client-key: %q}", in("cert"), in("key")))

	k, err := kubeconfig.Open(in("kubeconfig"))
	require.NoError(t, err)
	clients := map[string]*http.Client{}
	for _, user := range []string{"", "u"} {
		config, err := k.Config(user)
		require.NoError(t, err)
		clients[user], err = rest.HTTPClientFor(config)
		require.NoError(t, err)
	}
	_, err = k.Config("other")
	require.ErrorContains(t, err, `no user "other"`)
	becomes := func(want string) {
		t.Helper()
		for name, client := range clients {
			require.Eventually(t, func() bool {
				response, err := client.Get(server.URL)
				require.NoError(t, err)
				identity, err := io.ReadAll(response.Body)
				require.NoError(t, err)
				require.NoError(t, response.Body.Close())
				return string(identity) == want
			}, 30*time.Second, 50*time.Millisecond, "user %q is %s", name, want)
		}
	}
	becomes("first")
	identify("second")
	becomes("second")

	replace(t, in("kubeconfig"), []byte("{"))
	identify("third")
	becomes("second") // a file that cannot be read changes nothing
	write(fmt.Sprintf("{client-certificate: %q, client-key: %q}", in("cert"), in("key")))
	becomes("third")
	write("{token: secret}")
	becomes("Bearer secret")
}
