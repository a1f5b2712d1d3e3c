// Package certs makes the certificate of a webhook's server. It is made anew at each start, together with a CA that
// exists only to be named in webhooks' configurations. An operator with several replicas keeps both in a Secret
// instead, or has cert-manager do so.
package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"time"
)

// life is how long a certificate is valid: longer than any process should run.
const life = 365 * 24 * time.Hour

// New returns a certificate for these names and addresses, and that of the CA in PEM.
func New(hosts ...string) (*tls.Certificate, []byte, error) {
	authority := &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	caKey, _, err := sign(authority, "site-operator-ca", authority, nil)
	if err != nil {
		return nil, nil, err
	}
	server := &x509.Certificate{KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			server.IPAddresses = append(server.IPAddresses, ip)
		} else {
			server.DNSNames = append(server.DNSNames, host)
		}
	}
	key, der, err := sign(server, "site-operator", authority, caKey)
	if err != nil {
		return nil, nil, err
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.Raw})
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, ca, nil
}

// sign makes a certificate with a new key. Without the CA's key it is signed by its own.
func sign(cert *x509.Certificate, name string, ca *x509.Certificate, caKey *ecdsa.PrivateKey,
) (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("a key for %s: %w", name, err)
	}
	if caKey == nil {
		caKey = key
	}
	cert.Subject = pkix.Name{CommonName: name}
	cert.SerialNumber = big.NewInt(time.Now().UnixNano())
	cert.NotBefore, cert.NotAfter = time.Now().Add(-time.Minute), time.Now().Add(life)
	cert.Raw, err = x509.CreateCertificate(rand.Reader, cert, ca, key.Public(), caKey)
	if err != nil {
		return nil, nil, fmt.Errorf("a certificate for %s: %w", name, err)
	}
	return key, cert.Raw, nil
}
