package certificates

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzSigningRequest: a signer can read an accepted request, and the request is signed with its own key.
func FuzzSigningRequest(f *testing.F) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(f, err)
	good, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{DNSNames: []string{"a"}}, key)
	require.NoError(f, err)
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add([]byte{0x30, 0x84, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, der []byte) {
		text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
		if parseRequest(text) != "" {
			return
		}
		request, err := x509.ParseCertificateRequest(der)
		require.NoError(t, err)
		require.NoError(t, request.CheckSignature())
	})
}

// FuzzIssued: an accepted output of a signer consists only of certificates.
func FuzzIssued(f *testing.F) {
	for _, text := range []string{"", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
		"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "# x\n-----BEGIN CERTIFICATE-----\nA: b\n\nAA==\n"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) == 0 || parseIssued(text) != "" {
			return
		}
		blocks := 0
		for rest := text; ; blocks++ {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil {
				break
			}
			require.Equal(t, "CERTIFICATE", block.Type)
			_, err := x509.ParseCertificates(block.Bytes)
			require.NoError(t, err)
		}
		require.NotZero(t, blocks)
	})
}
