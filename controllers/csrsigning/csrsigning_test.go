package csrsigning

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest/fakeenv"
	"github.com/coxswain-dev/coxswain/controllers/lib/csr"
)

var now = time.Date(2031, 5, 1, 8, 0, 0, 0, time.UTC)

func newKey(t *testing.T) *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	return key
}

// newCA returns a CA with the given validity.
func newCA(t *testing.T, life time.Duration, isCA bool) controller.KeyPair {
	key := newKey(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: isCA,
		NotBefore: now.Add(-24 * time.Hour), NotAfter: now.Add(life), BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	return controller.KeyPair{Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})}
}

// request returns an approved request for a client certificate of jane, after change.
func request(t *testing.T,
	change func(*certificatesv1.CertificateSigningRequest)) *certificatesv1.CertificateSigningRequest {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "jane", Organization: []string{"devs"}}}, newKey(t))
	require.NoError(t, err)
	r := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "r"}}
	r.Spec.Request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	r.Spec.SignerName = certificatesv1.KubeAPIServerClientSignerName
	r.Spec.Usages = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}
	has(certificatesv1.CertificateApproved)(r)
	change(r)
	return r
}

func has(c certificatesv1.RequestConditionType) func(*certificatesv1.CertificateSigningRequest) {
	return func(r *certificatesv1.CertificateSigningRequest) {
		r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{Type: c,
			Status: corev1.ConditionTrue})
	}
}

// sign reconciles the request once and returns it.
func sign(t *testing.T, ca controller.KeyPair,
	r *certificatesv1.CertificateSigningRequest) *certificatesv1.CertificateSigningRequest {
	e := fakeenv.New(t, r)
	e.Settings.Signing.Default, e.Settings.Signing.Duration = ca, 365*24*time.Hour
	e.Start(New)
	after, err := e.Client().CertificatesV1().CertificateSigningRequests().Get(t.Context(), "r", metav1.GetOptions{})
	require.NoError(t, err)
	return after
}

func parse(t *testing.T, certificate []byte) *x509.Certificate {
	block, _ := pem.Decode(certificate)
	require.NotNil(t, block)
	cert, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	return cert
}

func TestSigning_IssuesApprovedCertificates(t *testing.T) {
	t.Parallel()
	ca := newCA(t, 10*365*24*time.Hour, true)
	cert := parse(t, sign(t, ca, request(t, func(*certificatesv1.CertificateSigningRequest) {})).Status.Certificate)
	require.NoError(t, cert.CheckSignatureFrom(parse(t, ca.Cert)))
	require.Equal(t, "jane", cert.Subject.CommonName)
	require.Equal(t, []string{"devs"}, cert.Subject.Organization)
	require.Equal(t, x509.KeyUsageDigitalSignature, cert.KeyUsage)
	require.Equal(t, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, cert.ExtKeyUsage)
	require.False(t, cert.IsCA)
}

func TestSigning_LimitsTheValidity(t *testing.T) {
	t.Parallel()
	const year = 365 * 24 * time.Hour
	for name, c := range map[string]struct {
		ca    time.Duration
		asked *int32
		want  time.Duration // from now
	}{
		"the longest":             {10 * year, nil, year - backdate},
		"less":                    {10 * year, new(int32(3600)), time.Hour},
		"less, but not for hours": {10 * year, new(int32(86400)), 24*time.Hour - backdate},
		"more":                    {10 * year, new(int32(20 * 365 * 24 * 3600)), year - backdate},
		"too little":              {10 * year, new(int32(1)), minLife},
		"as long as the CA":       {time.Hour, nil, time.Hour},
	} {
		r := request(t, func(r *certificatesv1.CertificateSigningRequest) { r.Spec.ExpirationSeconds = c.asked })
		cert := parse(t, sign(t, newCA(t, c.ca, true), r).Status.Certificate)
		require.Equal(t, now.Add(c.want), cert.NotAfter, name)
		require.Equal(t, now.Add(-backdate), cert.NotBefore, name)
	}
}

func TestSigning_IgnoresOtherRequests(t *testing.T) {
	t.Parallel()
	ca := newCA(t, time.Hour, true)
	for name, change := range map[string]func(*certificatesv1.CertificateSigningRequest){
		"what was not approved": func(r *certificatesv1.CertificateSigningRequest) { r.Status.Conditions = nil },
		"what was denied":       has(certificatesv1.CertificateDenied),
		"what has failed":       has(certificatesv1.CertificateFailed),
		"what others sign": func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.SignerName = "example.com/s"
		},
		"what is being deleted": func(r *certificatesv1.CertificateSigningRequest) {
			r.DeletionTimestamp = new(metav1.Now())
		},
	} {
		r := request(t, change)
		after := sign(t, ca, r)
		require.Empty(t, after.Status.Certificate, name)
		require.Len(t, after.Status.Conditions, len(r.Status.Conditions), name)
	}
	issued := request(t, func(r *certificatesv1.CertificateSigningRequest) { r.Status.Certificate = []byte("earlier") })
	require.Equal(t, "earlier", string(sign(t, ca, issued).Status.Certificate))
}

func TestSigning_FailsRequestsAgainstTheSignersRules(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*certificatesv1.CertificateSigningRequest){
		"a usage for servers": func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.Usages = append(r.Spec.Usages, certificatesv1.UsageServerAuth)
		},
		"no usage for clients": func(r *certificatesv1.CertificateSigningRequest) { r.Spec.Usages = r.Spec.Usages[:1] },
		"a kubelet's certificate for a user": func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.SignerName = certificatesv1.KubeAPIServerClientKubeletSignerName
		},
		"not a request": func(r *certificatesv1.CertificateSigningRequest) { r.Spec.Request = []byte("none") },
		"a signature that is not the key's": func(r *certificatesv1.CertificateSigningRequest) {
			block, _ := pem.Decode(r.Spec.Request)
			block.Bytes[len(block.Bytes)-1] ^= 1
			r.Spec.Request = pem.EncodeToMemory(block)
		},
	} {
		after := sign(t, newCA(t, time.Hour, true), request(t, change))
		require.Empty(t, after.Status.Certificate, name)
		require.NotNil(t, csr.Has(after, certificatesv1.CertificateFailed), name)
		require.Equal(t, "SignerValidationFailure", csr.Has(after, certificatesv1.CertificateFailed).Reason, name)
	}
}

func TestSigning_IssuesNothingWithAnExpiredCA(t *testing.T) {
	t.Parallel()
	s := &signing{authorities: map[string]*authority{certificatesv1.KubeAPIServerClientSignerName: {
		pair: newCA(t, 0, true), longest: time.Hour, clock: fakeenv.New(t).Clock}}}
	r := request(t, func(*certificatesv1.CertificateSigningRequest) {})
	require.ErrorContains(t, s.reconcile(t.Context(), r), "has expired")
}

func TestNew_RejectsACertificateThatIsNoCA(t *testing.T) {
	t.Parallel()
	e := fakeenv.New(t)
	e.Settings.Signing.Default = newCA(t, time.Hour, false)
	_, err := New(e.Env)
	require.ErrorContains(t, err, "is not a CA")
}
