package podcertificatecleaner_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

func TestPodCertificateRequests_AreDeletedAfterTheRetention(t *testing.T) {
	t.Parallel()
	c := controllertest.NewSigning(t, "podcertificaterequest-cleaner-controller")
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	stub, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	require.NoError(t, err)
	pcrs := c.Client.CertificatesV1().PodCertificateRequests("default")
	_, err = pcrs.Create(c.Context(), &certificatesv1.PodCertificateRequest{ObjectMeta: metav1.ObjectMeta{Name: "r"},
		Spec: certificatesv1.PodCertificateRequestSpec{
			SignerName: "example.com/signer", PodName: "p", PodUID: "1", ServiceAccountName: "s",
			ServiceAccountUID: "2",
			NodeName:          "n", NodeUID: "3", StubPKCS10Request: stub,
		}}, metav1.CreateOptions{})
	require.NoError(t, err)
	deleted := func() bool {
		_, err := pcrs.Get(c.Context(), "r", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}
	c.Step(10 * time.Minute)
	require.False(t, deleted())
	c.Step(6 * time.Minute)
	// The clock may have moved before the controller set its timer: let time pass until the timer fires.
	c.Passing(time.Minute, "it is deleted after 15 minutes", deleted)
}
