package main

import (
	"crypto/x509"
	"encoding/pem"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/pki"
	"github.com/coxswain-dev/coxswain/cmd/coxswain/certs"
)

func frontProxyFlagsOf(t *testing.T, args ...string) *frontProxyFlags {
	t.Helper()
	f, fs := &frontProxyFlags{}, pflag.NewFlagSet("", pflag.ContinueOnError)
	f.add(fs)
	require.NoError(t, fs.Parse(args))
	return f
}

// makeCertificates runs `coxswain certs` with a data directory.
func makeCertificates(t *testing.T, dir string) {
	t.Helper()
	cmd := certs.New()
	cmd.SetArgs([]string{"--data-dir", dir})
	cmd.SetOut(io.Discard)
	require.NoError(t, cmd.Execute())
}

func readCertificate(t *testing.T, dir, name string) *x509.Certificate {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(dir, "pki", name+".crt"))
	require.NoError(t, err)
	block, _ := pem.Decode(content)
	require.NotNil(t, block)
	cert, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	return cert
}

// Without flags the server is the only front proxy, with a certificate of a CA in its data directory.
func TestFrontProxy_DefaultsToTheServer(t *testing.T) {
	t.Parallel()
	dir, f := t.TempDir(), frontProxyFlagsOf(t)
	own, err := certs.OpenAuthorities(dir)
	require.NoError(t, err)
	trusted, err := f.trusted(own, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"front-proxy-client"}, trusted.AllowedNames)
	require.Equal(t, authn.StandardIdentityHeaders(), trusted.Headers)
	current, err := f.certificate(own)
	require.NoError(t, err)
	cert, err := current()
	require.NoError(t, err)
	require.NoError(t, cert.Leaf.CheckSignatureFrom(readCertificate(t, dir, "front-proxy-ca")))
	own, err = certs.OpenAuthorities(dir)
	require.NoError(t, err)
	again, err := f.trusted(own, nil)
	require.NoError(t, err)
	require.Equal(t, trusted.CAs.PEM(), again.CAs.PEM(), "after a restart")
}

func TestFrontProxy_ReadsFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	makeCertificates(t, dir)
	own, err := certs.OpenAuthorities(dir)
	require.NoError(t, err)
	in := func(name string) string { return filepath.Join(dir, "pki", name) }
	f := frontProxyFlagsOf(t, "--requestheader-client-ca-file", in("front-proxy-ca.crt"), "--proxy-client-cert-file",
		in("front-proxy-client.crt"), "--proxy-client-key-file", in("front-proxy-client.key"),
		"--requestheader-username-headers", " X-Remote-User ,X-User")
	trusted, err := f.trusted(own, authn.PublishedCAs(nil))
	require.NoError(t, err)
	require.Empty(t, trusted.AllowedNames)
	require.Equal(t, []string{"X-Remote-User", "X-User"}, trusted.Headers.Users)
	current, err := f.certificate(own)
	require.NoError(t, err)
	cert, err := current()
	require.NoError(t, err)
	require.Equal(t, readCertificate(t, dir, "front-proxy-client").Raw, cert.Leaf.Raw)

	// Only a certificate: the server presents it, and trusts no front proxy.
	f = frontProxyFlagsOf(t, "--proxy-client-cert-file", in("front-proxy-client.crt"), "--proxy-client-key-file",
		in("front-proxy-client.key"))
	trusted, err = f.trusted(own, nil)
	require.NoError(t, err)
	require.Nil(t, trusted)
	// Only a CA: the server trusts front proxies, and has no certificate.
	f = frontProxyFlagsOf(t, "--requestheader-client-ca-file", in("front-proxy-ca.crt"))
	current, err = f.certificate(own)
	require.NoError(t, err)
	require.Nil(t, current)
}

func TestFrontProxy_RejectsContradictoryFlags(t *testing.T) {
	t.Parallel()
	ca, err := pki.NewCA()
	require.NoError(t, err)
	own, err := certs.OpenAuthorities("")
	require.NoError(t, err)
	other, err := pki.NewCA()
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "ca.crt")
	require.NoError(t, os.WriteFile(file, append(other.PEM(), ca.PEM()...), 0o600))
	clients := authn.PublishedCAs(ca.PEM())
	for want, args := range map[string][]string{
		"contain overlapping certificates":                       {"--requestheader-client-ca-file", file},
		"no such file":                                           {"--requestheader-client-ca-file", file + "x"},
		`empty value in "requestheader-username-headers"`:        {"--requestheader-username-headers", "a,,b"},
		`empty value in "requestheader-extra-headers-prefix"`:    {"--requestheader-extra-headers-prefix", " "},
		`empty value in "requestheader-allowed-names"`:           {"--requestheader-allowed-names", " "},
		"without specifying the standard X-Remote-Uid header":    {"--requestheader-uid-headers", "X-Uid"},
		"--proxy-client-key-file must be specified together":     {"--proxy-client-cert-file", file},
		"--proxy-client-cert-file: pki: certificate: looking at": {"--proxy-client-cert-file", file, "--proxy-client-key-file", "x"},
	} {
		f := frontProxyFlagsOf(t, args...)
		_, err := f.trusted(own, clients)
		if err == nil {
			_, err = f.certificate(own)
		}
		require.ErrorContains(t, err, want)
	}
	f := frontProxyFlagsOf(t, "--requestheader-client-ca-file", file, "--requestheader-allowed-names", "proxy")
	_, err = f.trusted(own, clients)
	require.NoError(t, err, "the allowed names distinguish proxies from clients")
}
