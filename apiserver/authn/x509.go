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

// ClientCertificates authenticates by X.509 client certificates that the CAs have signed:
// the common name is the user, the organizations are the groups.
// https://kubernetes.io/docs/reference/access-authn-authz/authentication/#x509-client-certificates
type ClientCertificates struct{ CAs *x509.CertPool }

// Authenticate verifies the chain once for each connection.
func (c ClientCertificates) Authenticate(r *http.Request) (*User, bool, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil, false, nil
	}
	conn, _ := r.Context().Value(connectionKey{}).(*connection)
	if conn == nil {
		conn = &connection{}
	}
	conn.once.Do(func() { conn.user, conn.err = c.verify(r.TLS.PeerCertificates) })
	if conn.err == nil && r.TLS.PeerCertificates[0].NotAfter.Before(time.Now()) {
		return nil, false, errors.New("client certificate has expired")
	}
	return conn.user, conn.err == nil, conn.err
}

func (c ClientCertificates) verify(chain []*x509.Certificate) (*User, error) {
	intermediates := x509.NewCertPool()
	for _, cert := range chain[1:] {
		intermediates.AddCert(cert)
	}
	leaf := chain[0]
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots: c.CAs, Intermediates: intermediates,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil || leaf.Subject.CommonName == "" {
		return nil, errors.New("client certificate is not valid")
	}
	return &User{
		Name:   leaf.Subject.CommonName,
		Groups: append(slices.Clone(leaf.Subject.Organization), GroupAuthenticated),
	}, nil
}

// connection holds what is known of a TLS connection, so that its certificate is verified
// once and not with every request.
type connection struct {
	once sync.Once
	user *User
	err  error
}

type connectionKey struct{}

// WithConnection is an http.Server's ConnContext.
func WithConnection(ctx context.Context, _ net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, &connection{})
}
