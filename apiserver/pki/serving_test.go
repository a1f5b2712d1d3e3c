package pki

import (
	"crypto/x509"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestServing_RenewsItsCertificateWhenAThirdOfItsLifeIsLeft(t *testing.T) {
	t.Parallel()
	ca, err := NewCA()
	require.NoError(t, err)
	cert, err := ca.Serving("localhost", "127.0.0.1")
	require.NoError(t, err)
	first, err := cert.Current()
	require.NoError(t, err)
	again, err := cert.Current()
	require.NoError(t, err)
	require.Same(t, first, again)
	require.NoError(t, first.Leaf.VerifyHostname("localhost"))
	require.NoError(t, first.Leaf.VerifyHostname("127.0.0.1"))

	worn := *first.Leaf
	worn.NotBefore, worn.NotAfter = time.Now().Add(-9*time.Hour), time.Now().Add(4*time.Hour)
	cert.(*renewed).cert.Leaf = &worn
	again, err = cert.Current()
	require.NoError(t, err)
	require.NotSame(t, first, again)
	_, err = again.Leaf.Verify(x509.VerifyOptions{Roots: ca.Pool()})
	require.NoError(t, err)
}

func TestClientCertificate_IsNoServers(t *testing.T) {
	t.Parallel()
	ca, err := NewNamedCA("front-proxy-ca")
	require.NoError(t, err)
	require.Equal(t, "front-proxy-ca", ca.Certificate().Subject.CommonName)
	cert, err := ca.ClientCertificate("front-proxy-client").Current()
	require.NoError(t, err)
	require.Equal(t, "front-proxy-client", cert.Leaf.Subject.CommonName)
	_, err = cert.Leaf.Verify(x509.VerifyOptions{Roots: ca.Pool(),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	require.NoError(t, err)
	require.Error(t, cert.Leaf.VerifyHostname("localhost"))
}
