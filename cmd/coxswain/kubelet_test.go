package main

import (
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/cmd/coxswain/certs"
)

// The data directory is that of an earlier version, without the CA of nodes' serving certificates.
func TestKubelet_OnlyTheAPIServerTrustsServingCertificatesOfNodes(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	_, err := certs.OpenAuthorities(dir)
	require.NoError(t, err)
	require.NoFileExists(t, filepath.Join(dir, "pki", "kubelet-serving-ca.crt"))
	own, err := certs.OpenAuthorities(dir)
	require.NoError(t, err)
	serving, err := own.NodeServing("10.0.0.1", "node-0")
	require.NoError(t, err)
	cert, err := serving.Current()
	require.NoError(t, err)
	verify := func(roots *x509.CertPool, cert *x509.Certificate) error {
		_, err := cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: "10.0.0.1"})
		return err
	}
	clients := x509.NewCertPool()
	ca, err := os.ReadFile(filepath.Join(dir, "pki", "ca.crt"))
	require.NoError(t, err)
	require.True(t, clients.AppendCertsFromPEM(ca))
	require.ErrorAs(t, verify(clients, cert.Leaf), &x509.UnknownAuthorityError{})

	f, fs := &kubeletFlags{}, pflag.NewFlagSet("", pflag.ContinueOnError)
	f.add(fs)
	o, err := f.options(own)
	require.NoError(t, err)
	require.NoError(t, verify(o.CAs, cert.Leaf))
	earlier, err := own.Cluster.Server("10.0.0.1")
	require.NoError(t, err)
	require.NoError(t, verify(o.CAs, earlier.Leaf), "a certificate that an earlier version issued to a node")

	signing, err := (&serverFlags{dataDir: dir}).signing(own)
	require.NoError(t, err)
	alone, err := signing.signing.KubeletServingAlone(ca)
	require.NoError(t, err)
	require.True(t, alone)
	inMemory, err := certs.OpenAuthorities("")
	require.NoError(t, err)
	signing, err = (&serverFlags{}).signingInMemory(inMemory)
	require.NoError(t, err)
	alone, err = signing.signing.KubeletServingAlone(inMemory.Cluster.PEM())
	require.NoError(t, err)
	require.True(t, alone)
}
