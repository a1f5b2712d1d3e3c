package x509metrics

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
)

// issue signs a certificate for a server; without a signer it is a CA's own.
func issue(t *testing.T, template, signer *x509.Certificate, by *rsa.PrivateKey) (*x509.Certificate, *rsa.PrivateKey) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	template.SerialNumber = big.NewInt(1)
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	if signer == nil {
		signer, by = template, key
		template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	}
	der, err := x509.CreateCertificate(rand.Reader, template, signer, &key.PublicKey, by)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return cert, key
}

// visit asks a server with a certificate, whose name is to be hook.example.com.
func visit(t *testing.T, ca, cert *x509.Certificate, key *rsa.PrivateKey) error {
	t.Helper()
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}}}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "hook.example.com"}}
	t.Cleanup(transport.CloseIdleConnections)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
	require.NoError(t, err)
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err == nil {
		require.NoError(t, response.Body.Close())
	}
	return err
}

func TestCounters_OfWhatServersShow(t *testing.T) {
	t.Parallel()
	ca, by := issue(t, &x509.Certificate{Subject: pkix.Name{CommonName: "ca"}}, nil, nil)
	named := pkix.Name{CommonName: "hook.example.com"}
	for name, c := range map[string]struct {
		template x509.Certificate
		key      string
		counts   [2]float64
	}{
		"good":        {x509.Certificate{Subject: named, DNSNames: []string{named.CommonName}}, "", [2]float64{}},
		"other's":     {x509.Certificate{Subject: named, DNSNames: []string{"other"}}, "", [2]float64{}},
		"without SAN": {x509.Certificate{Subject: named}, "missing-san.invalid-cert.kubernetes.io/hook", [2]float64{1, 0}},
		"SHA-1": {x509.Certificate{Subject: named, DNSNames: []string{named.CommonName},
			SignatureAlgorithm: x509.SHA1WithRSA}, "insecure-sha1.invalid-cert.kubernetes.io/hook", [2]float64{0, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cert, key := issue(t, &c.template, ca, by)
			err := visit(t, ca, cert, key)
			counters := New("test")
			counters.Count(err)
			require.Equal(t, c.counts, [2]float64{testutil.ToFloat64(counters[0]), testutil.ToFloat64(counters[1])}, "%v", err)
			annotation, reason := Annotation(err, "hook")
			require.Equal(t, c.key, annotation)
			require.Equal(t, c.key != "", reason != "")
		})
	}
	for _, err := range []error{nil, errors.New("x509: certificate relies on legacy Common Name field")} {
		key, _ := Annotation(err, "hook")
		require.Empty(t, key)
	}
}
