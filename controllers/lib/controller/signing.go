package controller

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"slices"
	"time"
)

// SigningSettings holds the CAs that sign the certificates of CertificateSigningRequests. A signer without a CA
// of its own uses Default; without that it does not sign.
type SigningSettings struct {
	// Default is --cluster-signing-cert-file and -key-file.
	Default KeyPair
	// The other pairs are --cluster-signing-kubelet-serving-…, -kubelet-client-…, -kube-apiserver-client-… and
	// -legacy-unknown-….
	KubeletServing, KubeletClient, KubeAPIServerClient, LegacyUnknown KeyPair
	// Duration is --cluster-signing-duration, the longest validity of a certificate (a year).
	Duration time.Duration
	// APIServerNames are names and addresses of the API servers, besides the ones in the API. Serving
	// certificates for them are never approved automatically.
	APIServerNames []string
}

// KubeletServingAlone reports whether nodes' serving certificates are signed by a CA that signs only these
// and is not among the root certificates, which authenticate the API server to clients. With a shared CA,
// clients would accept a node's certificate as the API server's.
func (s SigningSettings) KubeletServingAlone(root []byte) (bool, error) {
	if s.KubeletServing.Empty() {
		return false, nil
	}
	own, _, err := s.KubeletServing.Load()
	if err != nil {
		return false, err
	}
	others := [][]byte{root}
	for _, pair := range []KeyPair{s.Default, s.KubeletClient, s.KubeAPIServerClient, s.LegacyUnknown} {
		if pair.Empty() {
			continue
		}
		cert, _, err := pair.Load()
		if err != nil {
			return false, err
		}
		others = append(others, cert)
	}
	keys := map[string]bool{}
	for _, bundle := range others {
		for _, cert := range certificates(bundle) {
			keys[string(cert.RawSubjectPublicKeyInfo)] = true
		}
	}
	return !slices.ContainsFunc(certificates(own), func(c *x509.Certificate) bool {
		return keys[string(c.RawSubjectPublicKeyInfo)]
	}), nil
}

// certificates returns the certificates of a PEM bundle, without the ones that cannot be parsed.
func certificates(bundle []byte) (all []*x509.Certificate) {
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil {
			all = append(all, cert)
		}
	}
	return all
}

// KeyPair is a certificate and its private key in PEM, in memory or, if Cert is empty, in files, which are read
// at each Load.
type KeyPair struct {
	Cert, Key         []byte
	CertFile, KeyFile string
}

// Empty reports whether the pair is unset.
func (p KeyPair) Empty() bool { return len(p.Cert) == 0 && p.CertFile == "" }

// Load returns the certificate and the key.
func (p KeyPair) Load() (cert, key []byte, err error) {
	if len(p.Cert) > 0 {
		return p.Cert, p.Key, nil
	}
	if cert, err = os.ReadFile(p.CertFile); err != nil {
		return nil, nil, fmt.Errorf("read certificate: %w", err)
	}
	if key, err = os.ReadFile(p.KeyFile); err != nil {
		return nil, nil, fmt.Errorf("read private key: %w", err)
	}
	return cert, key, nil
}
