package csrcleaner

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest/fakeenv"
)

var made = time.Date(2031, 5, 1, 8, 0, 0, 0, time.UTC)

// request returns a request with the conditions, each set ten minutes after its creation.
func request(conditions ...certificatesv1.RequestConditionType) *certificatesv1.CertificateSigningRequest {
	r := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "r", UID: "r-1",
		ResourceVersion: "7", CreationTimestamp: metav1.NewTime(made)}}
	for _, c := range conditions {
		r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{Type: c,
			Status: corev1.ConditionTrue, LastUpdateTime: metav1.NewTime(made.Add(10 * time.Minute))})
	}
	return r
}

// issued adds a certificate with the given validity.
func issued(t *testing.T, r *certificatesv1.CertificateSigningRequest,
	life time.Duration) *certificatesv1.CertificateSigningRequest {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: made, NotAfter: made.Add(life)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	r.Status.Certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return r
}

func TestDeadline_IsTheEarliestReason(t *testing.T) {
	t.Parallel()
	const (
		approved = certificatesv1.CertificateApproved
		denied   = certificatesv1.CertificateDenied
		failed   = certificatesv1.CertificateFailed
	)
	refuted := request(denied)
	refuted.Status.Conditions[0].Status = corev1.ConditionFalse
	unreadable := request()
	unreadable.Status.Certificate = []byte("none")
	for name, c := range map[string]struct {
		r    *certificatesv1.CertificateSigningRequest
		want time.Duration
	}{
		"pending":                      {request(), 24 * time.Hour},
		"denied":                       {request(denied), 70 * time.Minute},
		"not denied after all":         {refuted, 24 * time.Hour},
		"approved, not yet issued":     {request(approved), 24 * time.Hour},
		"approved, failed":             {request(approved, failed), 70 * time.Minute},
		"issued":                       {issued(t, request(approved), 24*time.Hour), 70 * time.Minute},
		"issued for less than an hour": {issued(t, request(approved), 30*time.Minute), 30 * time.Minute},
		"issued, unreadable":           {unreadable, 24 * time.Hour},
	} {
		require.Equal(t, c.want, deadline(c.r).Sub(made), name)
	}
}

func TestCSRCleaner_DeletesAtTheDeadline(t *testing.T) {
	t.Parallel()
	e := fakeenv.New(t, request(certificatesv1.CertificateDenied))
	require.Equal(t, made, e.Clock.Now())
	e.Start(New)
	e.Pass(70*time.Minute - time.Second)
	require.Empty(t, e.Writes("delete", "certificatesigningrequests"))
	e.Pass(time.Second)
	require.Len(t, e.Writes("delete", "certificatesigningrequests"), 1)
	o := e.Writes("delete", "certificatesigningrequests")[0].(clienttesting.DeleteActionImpl).DeleteOptions
	require.Equal(t, types.UID("r-1"), *o.Preconditions.UID)
	require.Equal(t, "7", *o.Preconditions.ResourceVersion, "one that was answered meanwhile is kept")
}

func TestCSRCleaner_FollowsTheWallClock(t *testing.T) {
	t.Parallel()
	e := fakeenv.New(t, request())
	e.Start(New)
	e.Clock.SetAhead(24 * time.Hour)
	e.Pass(10 * time.Second)
	require.Len(t, e.Writes("delete", "certificatesigningrequests"), 1)
}
