package apiserver_test

import (
	"crypto/tls"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/pki"
)

func TestClientCAs_ReplacementAppliesToOpenConnections(t *testing.T) {
	t.Parallel()
	before, err := pki.NewCA()
	require.NoError(t, err)
	after, err := pki.NewCA()
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "clients.crt")
	require.NoError(t, pki.WriteSecret(file, before.PEM()))
	cas, err := authn.OpenCAs(slog.New(slog.DiscardHandler), nil, file)
	require.NoError(t, err)
	a := assemble(t, builtin.Kinds(), apiserver.Options{Authentication: authn.Options{ClientCAs: cas}})
	client := func(ca *pki.CA) *server {
		config := rest.CopyConfig(a.config)
		config.CertData, config.KeyData, err = ca.Client("jane", "system:masters")
		require.NoError(t, err)
		return connect(t, config)
	}
	old, fresh := client(before), client(after)
	old.get(configMaps).ok(http.StatusOK)
	fresh.get(configMaps).ok(http.StatusUnauthorized)
	require.NoError(t, pki.WriteSecret(file, after.PEM()))
	require.Eventually(t, func() bool { return fresh.get(configMaps).code == http.StatusOK }, patience, tick)
	old.get(configMaps).ok(http.StatusUnauthorized)
}

func TestServerCertificate_ReplacementAppliesToNewConnections(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "server.crt"), filepath.Join(dir, "server.key")
	ca, err := pki.NewCA()
	require.NoError(t, err)
	// A client's certificate is sufficient: the test only compares which certificate is presented.
	write := func(name string) {
		cert, key, err := ca.Client(name)
		require.NoError(t, err)
		require.NoError(t, pki.WriteSecret(keyFile, key))
		require.NoError(t, pki.WriteSecret(certFile, cert))
	}
	write("one")
	cert, err := pki.CertificateFiles(slog.New(slog.DiscardHandler), certFile, keyFile)
	require.NoError(t, err)
	shown := func() string {
		current, err := apiserver.TLSConfig(cert).GetCertificate(&tls.ClientHelloInfo{})
		require.NoError(t, err)
		return current.Leaf.Subject.CommonName
	}
	require.Equal(t, "one", shown())
	require.NoError(t, os.WriteFile(certFile, []byte("nonsense"), 0o600))
	write("two")
	require.Eventually(t, func() bool { return shown() == "two" }, patience, tick)
}

// BenchmarkAuthenticate measures a request that is only authenticated and answered, for each type of credential.
func BenchmarkAuthenticate(b *testing.B) {
	s, _ := withTokens(b, nil)
	s.account("robot")
	for name, s := range map[string]*server{"x509": s, "token": s.bearing(s.token("robot", m{}).token())} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				res := s.send(http.MethodGet, "/version", nil)
				if res.StatusCode != http.StatusOK {
					b.Fatal(res.Status)
				}
				_ = res.Body.Close()
			}
		})
	}
}

// The secrets of clients do not appear in logs, metrics and errors.
func TestSecrets_AreInNoLogMetricOrError(t *testing.T) {
	t.Parallel()
	const secret = "abcdef.s3cr3ts3cr3ts3cr"
	file := filepath.Join(t.TempDir(), "tokens.csv")
	require.NoError(t, os.WriteFile(file, []byte("good-s3cr3t,jane,1,system:masters\n"), 0o600))
	a := assemble(t, builtin.Kinds(),
		apiserver.Options{Authentication: authn.Options{TokenFile: file, BootstrapTokens: true}})
	var said strings.Builder
	for _, token := range []string{secret, "good-s3cr3t", "eyJhbGciOiJub25lIn0.s3cr3t."} {
		c := a.bearing(token)
		said.Write(c.get(configMaps).body)
		said.Write(c.get("/nothing/at/all").body)
	}
	said.Write(a.get("/metrics").body)
	said.WriteString(a.log.String())
	require.NotContains(t, said.String(), "s3cr3t")
}
