package main

import (
	"crypto/tls"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/apiserver/pki"
)

func TestTLSFlags_BehaveLikeKubernetes(t *testing.T) {
	t.Parallel()
	ca, err := pki.NewCA()
	require.NoError(t, err)
	cert, err := ca.Serving("localhost")
	require.NoError(t, err)
	for _, c := range []struct {
		args   []string
		min    uint16
		suites []uint16
		words  string
	}{
		{nil, tls.VersionTLS12, apiserver.TLSConfig(cert).CipherSuites, ""},
		{[]string{"--tls-min-version=VersionTLS13"}, tls.VersionTLS13, apiserver.TLSConfig(cert).CipherSuites, ""},
		{[]string{"--tls-cipher-suites=TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"}, tls.VersionTLS12,
			[]uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256}, ""},
		{[]string{"--tls-min-version=1.2"}, 0, nil,
			`--tls-min-version: "1.2" is not one of: VersionTLS10, VersionTLS11, VersionTLS12, VersionTLS13`},
		{[]string{"--tls-cipher-suites=TLS_NULL"}, 0, nil,
			`--tls-cipher-suites: cipher suite "TLS_NULL" is not supported or does not exist`},
		{[]string{"--tls-cipher-suites=TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"}, 0, nil,
			"--tls-cipher-suites: HTTP/2 needs TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"},
	} {
		var f tlsFlags
		fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
		f.add(fs)
		require.NoError(t, fs.Parse(c.args))
		config := apiserver.TLSConfig(cert)
		if err := f.apply(config); c.words != "" {
			require.ErrorContains(t, err, c.words)
			continue
		} else {
			require.NoError(t, err, c.args)
		}
		require.Equal(t, c.min, config.MinVersion, c.args)
		require.Equal(t, c.suites, config.CipherSuites, c.args)
	}
}
