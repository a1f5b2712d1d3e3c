package authn

import (
	"context"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// CAs are certificate authorities that may change while the server runs.
type CAs interface {
	// Pool returns the current set. It is the same pointer for as long as the set is the same.
	Pool() *x509.CertPool
}

// FixedCAs are CAs that do not change.
func FixedCAs(pool *x509.CertPool) CAs { return fixedCAs{pool} }

type fixedCAs struct{ pool *x509.CertPool }

func (f fixedCAs) Pool() *x509.CertPool { return f.pool }

// ClientCertificates authenticates by X.509 client certificates that the CAs have signed:
// the common name is the user, the organizations are the groups.
// https://kubernetes.io/docs/reference/access-authn-authz/authentication/#x509-client-certificates
type ClientCertificates struct{ CAs CAs }

// Authenticate verifies the chain once for each connection and set of CAs.
func (c ClientCertificates) Authenticate(r *http.Request) (*User, bool, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil, false, nil
	}
	conn, _ := r.Context().Value(connectionKey{}).(*connection)
	if conn == nil {
		conn = &connection{}
	}
	user, err := conn.verified(c.CAs.Pool(), r.TLS.PeerCertificates)
	if err == nil && r.TLS.PeerCertificates[0].NotAfter.Before(time.Now()) {
		return nil, false, errors.New("client certificate has expired")
	}
	return user, err == nil, err
}

func verify(cas *x509.CertPool, chain []*x509.Certificate) (*User, error) {
	intermediates := x509.NewCertPool()
	for _, cert := range chain[1:] {
		intermediates.AddCert(cert)
	}
	leaf := chain[0]
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots: cas, Intermediates: intermediates,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil || leaf.Subject.CommonName == "" {
		return nil, errors.New("client certificate is not valid")
	}
	return authenticated(&User{Name: leaf.Subject.CommonName, Groups: slices.Clone(leaf.Subject.Organization)}), nil
}

// connection caches the result for a TLS connection, so that its certificate is verified once and not
// with every request.
type connection struct {
	mu   sync.Mutex
	by   *x509.CertPool
	user *User
	err  error
}

func (c *connection) verified(cas *x509.CertPool, chain []*x509.Certificate) (*User, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.by != cas {
		c.by = cas
		c.user, c.err = verify(cas, chain)
	}
	return c.user, c.err
}

type connectionKey struct{}

// WithConnection is an http.Server's ConnContext.
func WithConnection(ctx context.Context, _ net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, &connection{})
}
