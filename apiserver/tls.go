package apiserver

import (
	"crypto/tls"

	"github.com/coxswain-dev/coxswain/apiserver/pki"
)

// TLSConfig returns the server's configuration of TLS: at least version 1.2, and then only ciphers with forward secrecy
// and authentication. Client certificates are requested, but not verified in the handshake, so that the answer to a bad
// one is 401 and not a broken connection. Records have full size from the start: small ones would let a browser show
// the first kilobyte sooner, but each would cost a system call. The server's certificate is read for every handshake,
// so that it can be replaced.
func TLSConfig(cert pki.Certificate) *tls.Config {
	return &tls.Config{
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return cert.Current() },
		ClientAuth:     tls.RequestClientCert,
		MinVersion:     tls.VersionTLS12,
		CipherSuites: []uint16{ // of TLS 1.2; all ciphers of 1.3 are good
			tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
			tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
			tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
		},
		NextProtos: []string{"h2", "http/1.1"},

		DynamicRecordSizingDisabled: true,
	}
}
