package apiserver

import (
	"crypto/tls"

	"github.com/coxswain-dev/coxswain/apiserver/pki"
)

// TLSConfig is how the server speaks TLS: 1.2 at least, and then with forward secrecy and
// authenticated ciphers only. Client certificates are requested, but not verified in the
// handshake, so that a bad one gets 401 and not a broken connection. Records are of full size
// from the start: small ones would let a browser show the first kilobyte sooner, at the
// price of a system call for each. The server's certificate is looked up for every
// handshake, so that it can be replaced.
func TLSConfig(cert pki.Certificate) *tls.Config {
	return &tls.Config{
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return cert.Current() },
		ClientAuth:     tls.RequestClientCert,
		MinVersion:     tls.VersionTLS12,
		CipherSuites: []uint16{ // of TLS 1.2; those of 1.3 are all good
			tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
			tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
			tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
		},
		NextProtos: []string{"h2", "http/1.1"},

		DynamicRecordSizingDisabled: true,
	}
}
