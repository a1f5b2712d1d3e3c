package authn

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
)

// CAs are certificate authorities that may change while the server runs.
type CAs interface {
	// Pool returns the current set. The pointer changes only with the set.
	Pool() *x509.CertPool
	// PEM returns the certificates of the current set, for other servers that should trust them; it is empty if the
	// set is not published.
	PEM() []byte
}

// FixedCAs returns CAs that do not change and are not published.
func FixedCAs(pool *x509.CertPool) CAs { return fixedCAs{pool: pool} }

// PublishedCAs returns the CAs in a PEM text, which do not change.
func PublishedCAs(pem []byte) CAs {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	return fixedCAs{pool, pem}
}

type fixedCAs struct {
	pool *x509.CertPool
	pem  []byte
}

func (f fixedCAs) Pool() *x509.CertPool { return f.pool }
func (f fixedCAs) PEM() []byte          { return f.pem }

// ClientCertificates authenticates X.509 client certificates that the CAs have signed: the common name is the user,
// the organizations are the groups.
// https://kubernetes.io/docs/reference/access-authn-authz/authentication/#x509-client-certificates
type ClientCertificates struct {
	CAs CAs
	// Clock decides whether certificates are valid.
	Clock clock.PassiveClock
	// Left observes the seconds until the certificate of an authenticated request expires; nil for no observation.
	Left prometheus.Observer
	// Refused is a certificate with a key that is not accepted; nil for none.
	Refused *tls.Certificate
}

// KubeletClient is the user of API servers in requests to nodes. Nodes choose the destination of such requests, so
// no API server accepts this user.
const KubeletClient = "kube-apiserver-kubelet-client"

// Authenticate verifies the chain once for each connection and set of CAs.
func (c ClientCertificates) Authenticate(r *http.Request) (*User, bool, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil, false, nil
	}
	now := c.Clock.Now()
	user, err := connectionOf(r).client.current(c.CAs.Pool(), now, r.TLS.PeerCertificates, c.userOf)
	if err == nil && c.Left != nil {
		c.Left.Observe(r.TLS.PeerCertificates[0].NotAfter.Sub(now).Seconds())
	}
	return user, err == nil, err
}

var (
	errBadCertificate = errors.New("client certificate is not valid")
	errBadProxy       = errors.New("the client certificate is not a front proxy's")
	errKubeletClient  = errors.New("the client certificate is an API server's, for requests to nodes")
	errExpired        = errors.New("client certificate has expired")
)

// userOf verifies a user's certificate.
func (c ClientCertificates) userOf(cas *x509.CertPool, now time.Time, chain []*x509.Certificate) (*User, error) {
	subject := chain[0].Subject
	if verifyChain(cas, now, chain) != nil || subject.CommonName == "" {
		return nil, errBadCertificate
	}
	if subject.CommonName == KubeletClient || c.refuses(chain[0]) {
		return nil, errKubeletClient
	}
	return authenticated(&User{Name: subject.CommonName, Groups: slices.Clone(subject.Organization)}), nil
}

// refuses reports whether a certificate has the key of the refused one.
func (c ClientCertificates) refuses(leaf *x509.Certificate) bool {
	if c.Refused == nil || len(c.Refused.Certificate) == 0 {
		return false
	}
	refused, err := x509.ParseCertificate(c.Refused.Certificate[0])
	return err != nil || bytes.Equal(refused.RawSubjectPublicKeyInfo, leaf.RawSubjectPublicKeyInfo)
}

func verifyChain(cas *x509.CertPool, now time.Time, chain []*x509.Certificate) error {
	intermediates := x509.NewCertPool()
	for _, cert := range chain[1:] {
		intermediates.AddCert(cert)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{
		Roots: cas, Intermediates: intermediates, CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return err
}

// connection caches the results for a TLS connection, so that its certificate is verified once for each use and not
// with every request.
type connection struct{ client, proxy verification }

// verification is the result for one set of CAs. A rejection is cached for a second: a certificate that is not
// valid yet will become so, and clocks are corrected, but a chain that a client has chosen is expensive to verify.
type verification struct {
	mu       sync.Mutex
	cas      *x509.CertPool // the set of CAs of the result
	verified time.Time      // when the result was made
	user     *User
	err      error
}

// refusalKept is how long a rejected certificate is not verified again.
const refusalKept = time.Second

// current returns the result of verify for the present CAs. A certificate that has expired since is not valid.
func (v *verification) current(cas *x509.CertPool, now time.Time, chain []*x509.Certificate,
	verify func(*x509.CertPool, time.Time, []*x509.Certificate) (*User, error)) (*User, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.cas != cas || v.err != nil && now.Sub(v.verified).Abs() >= refusalKept {
		v.cas, v.verified = cas, now
		v.user, v.err = verify(cas, now, chain)
	}
	if v.err == nil && chain[0].NotAfter.Before(now) {
		return nil, errExpired
	}
	return v.user, v.err
}

// connectionOf returns the cached results for a request's connection. They are not cached if the server has no
// WithConnection.
func connectionOf(r *http.Request) *connection {
	if conn, ok := r.Context().Value(connectionKey{}).(*connection); ok {
		return conn
	}
	return &connection{}
}

type connectionKey struct{}

// WithConnection is the ConnContext of an http.Server: it adds a cache to a connection's context.
func WithConnection(ctx context.Context, _ net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, &connection{})
}
