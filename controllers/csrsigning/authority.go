package csrsigning

import (
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// authority signs with a CA. It reads the CA for each certificate, because the files may be replaced at any
// time.
type authority struct {
	pair controller.KeyPair
	// longest is the validity of certificates whose request asks for no shorter one.
	longest time.Duration
	clock   clock.PassiveClock
}

const (
	// backdate is how far the clock of a verifier may be behind.
	backdate = 5 * time.Minute
	// short is the shortest life that includes backdate. A shorter one counts from now, because backdate would be too
	// large a part of it.
	short = 8 * time.Hour
)

func (a *authority) load() (*x509.Certificate, crypto.Signer, error) {
	cert, key, err := a.pair.Load()
	if err != nil {
		return nil, nil, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, nil, fmt.Errorf("load signing CA: %w", err)
	}
	signer, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !pair.Leaf.IsCA {
		return nil, nil, errors.New("the signing certificate is not a CA")
	}
	return pair.Leaf, signer, nil
}

// issue returns the certificate in PEM.
func (a *authority) issue(r *certificatesv1.CertificateSigningRequest, request *x509.CertificateRequest) (
	[]byte, error) {
	ca, key, err := a.load()
	if err != nil {
		return nil, err
	}
	life := a.longest
	if seconds := r.Spec.ExpirationSeconds; seconds != nil {
		life = min(life, max(time.Duration(*seconds)*time.Second, minLife))
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("generate serial number: %w", err)
	}
	now := a.clock.Now()
	template := &x509.Certificate{
		SerialNumber: serial, RawSubject: request.RawSubject,
		DNSNames: request.DNSNames, IPAddresses: request.IPAddresses, EmailAddresses: request.EmailAddresses,
		URIs:      request.URIs,
		NotBefore: now.Add(-backdate), NotAfter: now.Add(life), BasicConstraintsValid: true,
	}
	if life >= short {
		template.NotAfter = template.NotAfter.Add(-backdate)
	}
	if template.NotAfter.After(ca.NotAfter) {
		template.NotAfter = ca.NotAfter
	}
	if !now.Before(template.NotAfter) {
		return nil, fmt.Errorf("the signing CA has expired: NotAfter=%s", ca.NotAfter)
	}
	if template.KeyUsage, template.ExtKeyUsage, err = usages(r.Spec.Usages); err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca, request.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

// minLife is the lowest expirationSeconds that the API accepts.
const minLife = 10 * time.Minute

func usages(names []certificatesv1.KeyUsage) (key x509.KeyUsage, ext []x509.ExtKeyUsage, err error) {
	for _, u := range names {
		if k, ok := keyUsages[u]; ok {
			key |= k
		} else if e, ok := extKeyUsages[u]; ok {
			ext = append(ext, e)
		} else {
			return 0, nil, fmt.Errorf("unrecognized usage %q", u)
		}
	}
	return key, ext, nil
}

var keyUsages = map[certificatesv1.KeyUsage]x509.KeyUsage{
	certificatesv1.UsageSigning:           x509.KeyUsageDigitalSignature,
	certificatesv1.UsageDigitalSignature:  x509.KeyUsageDigitalSignature,
	certificatesv1.UsageContentCommitment: x509.KeyUsageContentCommitment,
	certificatesv1.UsageKeyEncipherment:   x509.KeyUsageKeyEncipherment,
	certificatesv1.UsageKeyAgreement:      x509.KeyUsageKeyAgreement,
	certificatesv1.UsageDataEncipherment:  x509.KeyUsageDataEncipherment,
	certificatesv1.UsageCertSign:          x509.KeyUsageCertSign,
	certificatesv1.UsageCRLSign:           x509.KeyUsageCRLSign,
	certificatesv1.UsageEncipherOnly:      x509.KeyUsageEncipherOnly,
	certificatesv1.UsageDecipherOnly:      x509.KeyUsageDecipherOnly,
}

var extKeyUsages = map[certificatesv1.KeyUsage]x509.ExtKeyUsage{
	certificatesv1.UsageAny:             x509.ExtKeyUsageAny,
	certificatesv1.UsageServerAuth:      x509.ExtKeyUsageServerAuth,
	certificatesv1.UsageClientAuth:      x509.ExtKeyUsageClientAuth,
	certificatesv1.UsageCodeSigning:     x509.ExtKeyUsageCodeSigning,
	certificatesv1.UsageEmailProtection: x509.ExtKeyUsageEmailProtection,
	certificatesv1.UsageSMIME:           x509.ExtKeyUsageEmailProtection,
	certificatesv1.UsageIPsecEndSystem:  x509.ExtKeyUsageIPSECEndSystem,
	certificatesv1.UsageIPsecTunnel:     x509.ExtKeyUsageIPSECTunnel,
	certificatesv1.UsageIPsecUser:       x509.ExtKeyUsageIPSECUser,
	certificatesv1.UsageTimestamping:    x509.ExtKeyUsageTimeStamping,
	certificatesv1.UsageOCSPSigning:     x509.ExtKeyUsageOCSPSigning,
	certificatesv1.UsageMicrosoftSGC:    x509.ExtKeyUsageMicrosoftServerGatedCrypto,
	certificatesv1.UsageNetscapeSGC:     x509.ExtKeyUsageNetscapeServerGatedCrypto,
}
