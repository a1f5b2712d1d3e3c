package pki

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/coxswain-dev/coxswain/apiserver/reload"
)

// Certificate is a current certificate with its key. It is safe for concurrent use.
type Certificate interface {
	Current() (*tls.Certificate, error)
}

// CertificateFiles reads a certificate, with its chain, and its key from PEM files, and again when they change.
func CertificateFiles(log *slog.Logger, certFile, keyFile string) (Certificate, error) {
	files, err := reload.Open(log, func(contents [][]byte) (*tls.Certificate, error) {
		pair, err := tls.X509KeyPair(contents[0], contents[1])
		return &pair, err
	}, certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("pki: certificate: %w", err)
	}
	return certificateFiles{files}, nil
}

type certificateFiles struct {
	files *reload.Files[*tls.Certificate]
}

func (f certificateFiles) Current() (*tls.Certificate, error) { return f.files.Current(), nil }

// Serving returns a server certificate of the CA for the hosts, each a name or an IP address. It is held in memory
// only, and renewed when a third of its lifetime is left.
func (ca *CA) Serving(hosts ...string) (Certificate, error) {
	s := &renewed{ca: ca, leaf: Leaf{User: "coxswain-apiserver", Hosts: hosts}}
	_, err := s.Current()
	return s, err
}

// ClientCertificate returns a client certificate of the CA for the user. It is made when it is first needed, held
// in memory only, and renewed when a third of its lifetime is left.
func (ca *CA) ClientCertificate(user string) Certificate {
	return &renewed{ca: ca, leaf: Leaf{User: user, Client: true}}
}

type renewed struct {
	ca   *CA
	leaf Leaf

	mu   sync.Mutex
	cert *tls.Certificate
}

func (s *renewed) Current() (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cert != nil && !dueAt(s.cert.Leaf).Before(time.Now()) {
		return s.cert, nil
	}
	cert, err := s.ca.pair(s.leaf)
	if err != nil {
		return nil, err
	}
	s.cert = &cert
	return s.cert, nil
}

// dueAt returns when a certificate should be renewed: when a third of its lifetime is left.
func dueAt(cert *x509.Certificate) time.Time {
	return cert.NotAfter.Add(-cert.NotAfter.Sub(cert.NotBefore) / 3)
}
