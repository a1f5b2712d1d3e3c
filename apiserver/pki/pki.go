// Package pki makes the certificates of a control plane: a CA of its own, the server's
// certificate, and client certificates. The common name of a client certificate is a user, and its organizations
// are groups. Keys are ECDSA P-256. Secret files have mode 0600.
package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// The lifetimes of certificates. Leaves are issued again at every start.
const (
	caLife   = 10 * 365 * 24 * time.Hour
	leafLife = 365 * 24 * time.Hour
	// clockSkew is the time that another machine's clock may be behind ours. An hour is a common mistake.
	clockSkew = 2 * time.Hour
)

// CA is a certificate authority. It is safe for concurrent use.
type CA struct {
	cert *x509.Certificate
	key  crypto.Signer
	pem  []byte
	// within is the validity of the certificates that it issues. With nil, each is valid from now on, for its life.
	within *validity
}

type validity struct{ from, until time.Time }

// NewCA makes a CA that exists in memory only.
func NewCA() (*CA, error) { return NewNamedCA("coxswain") }

// NewNamedCA makes a CA with a common name, in memory only.
func NewNamedCA(name string) (*CA, error) { return newCA(name, nil) }

// NewCAWithin makes a CA, in memory only, for a control plane with another clock than the machine's. The CA's
// certificate and all that it issues are valid from one time until another, independently of the time when they are
// made. Only a Leaf with a Life ends sooner.
func NewCAWithin(name string, from, until time.Time) (*CA, error) {
	return newCA(name, &validity{from, until})
}

// anyClock is the life of NewCAByClock's certificates: longer than a test moves its clock.
const anyClock = 200 * 365 * 24 * time.Hour

// NewCAByClock makes a CA, in memory only, for a control plane in a test: its clock shows now. The certificates are
// valid by that clock, because the server checks them by it, and by the machine's clock, because clients do.
func NewCAByClock(name string, now time.Time) (*CA, error) {
	from, until := time.Now(), now
	if until.Before(from) {
		from, until = until, from
	}
	return NewCAWithin(name, from.Add(-24*time.Hour), until.Add(anyClock))
}

func newCA(name string, within *validity) (*CA, error) {
	key, err := NewKey()
	if err != nil {
		return nil, err
	}
	template := certificate(pkix.Name{CommonName: name}, caLife)
	if within != nil {
		template.NotBefore, template.NotAfter = within.from, within.until
	}
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("pki: CA certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("pki: CA certificate: %w", err)
	}
	return &CA{cert: cert, key: key, pem: pemOf("CERTIFICATE", der), within: within}, nil
}

// OpenCA reads ca.crt and ca.key from a directory, or makes them there if neither is there. One of them
// alone is an error: the rest of a CA is never replaced.
func OpenCA(dir string) (*CA, error) { return OpenNamedCA(filepath.Join(dir, "ca"), "coxswain") }

// OpenNamedCA does the same as OpenCA for the files FILE.crt and FILE.key, with the common name for a new CA.
func OpenNamedCA(file, name string) (*CA, error) {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	certFile, keyFile := file+".crt", file+".key"
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if errors.Is(err, fs.ErrNotExist) {
		return createCA(certFile, keyFile, name)
	}
	if err != nil {
		return nil, fmt.Errorf("pki: reading the CA: %w", err)
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !pair.Leaf.IsCA {
		return nil, fmt.Errorf("pki: %s is not a CA", certFile)
	}
	return &CA{cert: pair.Leaf, key: key, pem: pemOf("CERTIFICATE", pair.Leaf.Raw)}, nil
}

func createCA(certFile, keyFile, name string) (*CA, error) {
	for there, missing := range map[string]string{certFile: keyFile, keyFile: certFile} {
		if exists(there) {
			return nil, fmt.Errorf("pki: %s is there, and %s is not: a CA that others trust is not replaced; "+
				"restore the missing file, or move the other away for a new CA", there, missing)
		}
	}
	ca, err := NewNamedCA(name)
	if err != nil {
		return nil, err
	}
	key, err := ca.KeyPEM()
	if err != nil {
		return nil, err
	}
	if err := WriteSecret(keyFile, key); err != nil {
		return nil, err
	}
	if err := WriteSecret(certFile, ca.pem); err != nil {
		return nil, errors.Join(err, os.Remove(keyFile)) // the CA has not signed any certificate yet
	}
	return ca, nil
}

// exists reports whether a path is taken, even if only by a dangling link.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// PEM returns the CA's certificate.
func (ca *CA) PEM() []byte { return ca.pem }

// Certificate returns the CA's own certificate. It must not be changed.
func (ca *CA) Certificate() *x509.Certificate { return ca.cert }

// KeyPEM returns the CA's private key, for other signers.
func (ca *CA) KeyPEM() ([]byte, error) { return KeyPEM(ca.key) }

// Pool returns a pool of the CA's certificate alone.
func (ca *CA) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	return pool
}

// Leaf is the content of a new certificate.
type Leaf struct {
	// User and Groups are the common name and the organizations.
	User   string
	Groups []string
	// Hosts are names and IP addresses; with any, the certificate is a server's.
	Hosts []string
	// Client makes it a client certificate, possibly besides a server's.
	Client bool
	// Life is how long it is valid; 0 is a year. It does not exceed the CA's.
	Life time.Duration
}

// Issue makes a certificate and its key, in PEM.
func (ca *CA) Issue(l Leaf) (cert, key []byte, err error) {
	life := l.Life
	if life == 0 {
		life = leafLife
	}
	template := certificate(pkix.Name{CommonName: l.User, Organization: l.Groups}, life)
	if ca.within != nil {
		template.NotBefore = ca.within.from
	}
	if ca.within != nil && l.Life == 0 || template.NotAfter.After(ca.cert.NotAfter) {
		template.NotAfter = ca.cert.NotAfter
	}
	if l.Client {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
	}
	if len(l.Hosts) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	for _, h := range l.Hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, h)
		}
	}
	private, err := NewKey()
	if err != nil {
		return nil, nil, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, private.Public(), ca.key)
	if err != nil {
		return nil, nil, fmt.Errorf("pki: certificate: %w", err)
	}
	key, err = KeyPEM(private)
	return pemOf("CERTIFICATE", der), key, err
}

// Server makes a server certificate for the hosts, each a name or an IP address.
func (ca *CA) Server(hosts ...string) (tls.Certificate, error) {
	return ca.pair(Leaf{User: "coxswain-apiserver", Hosts: hosts})
}

func (ca *CA) pair(l Leaf) (tls.Certificate, error) {
	cert, key, err := ca.Issue(l)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(cert, key)
}

// Client makes a client certificate and its key, in PEM, for a user in the groups.
func (ca *CA) Client(user string, groups ...string) (cert, key []byte, err error) {
	return ca.Issue(Leaf{User: user, Groups: groups, Client: true})
}

func certificate(subject pkix.Name, life time.Duration) *x509.Certificate {
	now := time.Now()
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)) // never fails since Go 1.24
	return &x509.Certificate{
		SerialNumber: serial, Subject: subject,
		NotBefore: now.Add(-clockSkew), NotAfter: now.Add(life),
	}
}

func pemOf(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// KeyPEM returns a private key in PEM.
func KeyPEM(key crypto.Signer) ([]byte, error) {
	kind, der, err := "EC PRIVATE KEY", []byte(nil), error(nil)
	if ec, ok := key.(*ecdsa.PrivateKey); ok {
		der, err = x509.MarshalECPrivateKey(ec)
	} else {
		kind = "PRIVATE KEY"
		der, err = x509.MarshalPKCS8PrivateKey(key)
	}
	if err != nil {
		return nil, fmt.Errorf("pki: key: %w", err)
	}
	return pemOf(kind, der), nil
}

// PublicKeyPEM returns a public key in PEM.
func PublicKeyPEM(key crypto.PublicKey) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return nil, fmt.Errorf("pki: key: %w", err)
	}
	return pemOf("PUBLIC KEY", der), nil
}

// WriteSecret writes a file that only its owner may read. A reader sees the old content or
// the new, never a part.
func WriteSecret(path string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*") // made with mode 0600
	if err != nil {
		return fmt.Errorf("pki: %w", err)
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("pki: writing %s: %w", path, err)
	}
	return nil
}

// User is a client certificate and its key, in PEM, with the user's name.
type User struct {
	Name      string
	Cert, Key []byte
}

// Kubeconfig returns a self-contained kubeconfig for users of the server; commands use the first one.
// It equals clientcmd's output, but is made without its machinery: a server writes some at every start.
func Kubeconfig(server string, ca []byte, users ...User) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `apiVersion: v1
kind: Config
clusters:
- name: coxswain
  cluster:
    certificate-authority-data: %s
    server: %s
contexts:
- name: coxswain
  context:
    cluster: coxswain
    user: %s
current-context: coxswain
users:
`, base64.StdEncoding.EncodeToString(ca), server, users[0].Name)
	for _, u := range users {
		fmt.Fprintf(&b, "- name: %s\n  user:\n    client-certificate-data: %s\n    client-key-data: %s\n", u.Name,
			base64.StdEncoding.EncodeToString(u.Cert), base64.StdEncoding.EncodeToString(u.Key))
	}
	return b.Bytes()
}

// NewKey makes a private key.
func NewKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("pki: key: %w", err)
	}
	return key, nil
}

// EnsureKey makes a private key in a file, NAME.key, unless it exists. If only NAME.pub exists, the
// private key is missing, and is not replaced: others verify by the public one.
func EnsureKey(file string) error {
	if exists(file) {
		return nil
	}
	if public := strings.TrimSuffix(file, ".key") + ".pub"; exists(public) {
		return fmt.Errorf("pki: %s is there, and %s is not: a key that others trust is not replaced; "+
			"restore it, or move the other away for a new one", public, file)
	}
	key, err := NewKey()
	if err != nil {
		return err
	}
	content, err := KeyPEM(key)
	if err != nil {
		return err
	}
	return WriteSecret(file, content)
}
