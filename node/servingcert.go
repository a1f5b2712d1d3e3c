package node

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/coxswain-dev/coxswain/internal/backoff"
)

// Without a configured certificate, the agent has a self-signed serving certificate. With ServerTLSBootstrap it
// requests one with a CertificateSigningRequest for the signer kubernetes.io/kubelet-serving. The issued certificate
// replaces the self-signed one.

const (
	// The first look at a request is after certificatePoll. The wait doubles each time, up to certificatePollMost, and
	// has a random part.
	certificatePoll, certificatePollMost = 50 * time.Millisecond, 30 * time.Second
	// certificatePatience is how long the agent waits for an answer to a request, before it makes another one.
	certificatePatience = 10 * time.Minute
)

// tlsConfig returns the endpoint's TLS configuration.
func (a *agent) tlsConfig() (*tls.Config, error) {
	tc := &tls.Config{MinVersion: tls.VersionTLS12}
	if a.TLS != nil {
		tc = a.TLS.Clone()
	}
	tc.ClientAuth = tls.RequestClientCert
	tc.NextProtos = []string{"http/1.1"} // no HTTP/2, whose connections cannot be upgraded
	if a.certified() {
		return tc, nil
	}
	own, err := a.selfSigned()
	a.serving.Store(&own)
	tc.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return a.serving.Load(), nil }
	return tc, err
}

// certified reports whether a certificate was configured.
func (a *agent) certified() bool {
	return a.TLS != nil && (len(a.TLS.Certificates) > 0 || a.TLS.GetCertificate != nil)
}

// keepCertified requests a serving certificate, and a new one before each expires, until ctx ends.
func (a *agent) keepCertified(ctx context.Context) {
	for ctx.Err() == nil {
		wait := certificatePatience
		if cert, err := a.requestCertificate(ctx, a.nodes[a.Names[0]].client); err == nil {
			a.serving.Store(cert)
			wait = cert.Leaf.NotAfter.Sub(a.Clock.Now()) * 3 / 4
		} else if ctx.Err() == nil {
			a.Log.Warn("cannot obtain a serving certificate", "err", err)
		}
		a.pause(ctx, wait)
	}
}

// pause waits on the agent's clock, or until ctx ends.
func (a *agent) pause(ctx context.Context, d time.Duration) {
	timer := a.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C():
	}
}

// requestCertificate requests a serving certificate and waits until it is issued.
func (a *agent) requestCertificate(ctx context.Context, client kubernetes.Interface) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	names := a.servingNames()
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: names.Subject, DNSNames: names.DNSNames, IPAddresses: names.IPAddresses,
	}, key)
	if err != nil {
		return nil, err
	}
	requests := client.CertificatesV1().CertificateSigningRequests()
	csr, err := requests.Create(ctx, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request}),
			SignerName: certificatesv1.KubeletServingSignerName,
			Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	deadline, wait := a.Clock.Now().Add(certificatePatience), backoff.Doubling(certificatePoll, certificatePollMost)
	for len(csr.Status.Certificate) == 0 {
		for _, c := range csr.Status.Conditions {
			if c.Type == certificatesv1.CertificateDenied || c.Type == certificatesv1.CertificateFailed {
				return nil, fmt.Errorf("request %s is %s: %s", csr.Name, c.Type, c.Message)
			}
		}
		if a.Clock.Now().After(deadline) {
			return nil, fmt.Errorf("request %s is not answered", csr.Name)
		}
		a.pause(ctx, wait.Step())
		if csr, err = requests.Get(ctx, csr.Name, metav1.GetOptions{}); err != nil {
			return nil, err
		}
	}
	return pair(csr.Status.Certificate, key)
}

// pair returns the certificate of a chain in PEM and its key.
func pair(chain []byte, key *ecdsa.PrivateKey) (*tls.Certificate, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	cert, err := tls.X509KeyPair(chain, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}))
	if err != nil {
		return nil, err
	}
	if cert.Leaf == nil {
		return nil, errors.New("the certificate has no leaf")
	}
	return &cert, nil
}

// servingNames returns the subject, names and addresses of a serving certificate: those of the agent's first Node.
func (a *agent) servingNames() *x509.Certificate {
	c := &x509.Certificate{
		Subject:  pkix.Name{Organization: []string{"system:nodes"}, CommonName: "system:node:" + a.Names[0]},
		DNSNames: []string{a.Names[0]},
	}
	if ip := net.ParseIP(a.Address); ip != nil {
		c.IPAddresses = []net.IP{ip}
	}
	return c
}

// selfSigned returns a self-signed certificate, like the kubelet's.
func (a *agent) selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return tls.Certificate{}, err
	}
	now := a.Clock.Now()
	template := a.servingNames()
	template.SerialNumber, template.NotBefore, template.NotAfter = serial, now.Add(-time.Hour), now.AddDate(1, 0, 0)
	template.KeyUsage, template.ExtKeyUsage = x509.KeyUsageDigitalSignature,
		[]x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	template.BasicConstraintsValid = true
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}
