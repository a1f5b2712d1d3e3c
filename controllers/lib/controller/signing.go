package controller

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"slices"
	"time"
)

// SigningSettings are the CAs that sign what CertificateSigningRequests ask for. A signer without
// one of its own uses Default; one without either signs nothing.
type SigningSettings struct {
	// Default is --cluster-signing-cert-file and -key-file.
	Default KeyPair
	// The others are --cluster-signing-kubelet-serving-…, -kubelet-client-…, -kube-apiserver-client-…
	// and -legacy-unknown-….
	KubeletServing, KubeletClient, KubeAPIServerClient, LegacyUnknown KeyPair
	// Duration is --cluster-signing-duration: how long certificates are valid at most (a year).
	Duration time.Duration
	// APIServerNames are names and addresses of the API servers, besides those that the API shows. No node gets a
	// serving certificate for one of them by itself.
	APIServerNames []string
}

// KubeletServingAlone reports whether nodes' serving certificates are signed by a CA that signs nothing else and is
// none of the root certificates, by which clients recognize the API server. Otherwise a node's certificate is as good
// to these clients as the API server's own.
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

// certificates returns those of a PEM bundle that can be read.
func certificates(bundle []byte) (all []*x509.Certificate) {
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil {
			all = append(all, cert)
		}
	}
	return all
}

// KeyPair is a certificate and its private key in PEM: in memory or, where that is empty, in files,
// which are read each time.
type KeyPair struct {
	Cert, Key         []byte
	CertFile, KeyFile string
}

// Empty reports whether nothing is set.
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
