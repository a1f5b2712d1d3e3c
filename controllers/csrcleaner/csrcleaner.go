// Package csrcleaner deletes CertificateSigningRequests an hour after they were answered, after a day without
// an answer, and when their certificate has expired.
package csrcleaner

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
	"github.com/coxswain-dev/coxswain/controllers/lib/csr"
)

// How long answered and pending requests are kept.
const (
	answered = time.Hour
	pending  = 24 * time.Hour
)

// New returns the controller. Its keys are CertificateSigningRequests.
func New(env *controller.Env) (*controller.Controller, error) {
	var c *controller.Controller
	c = csr.New(env, "certificatesigningrequest-cleaner-controller",
		func(ctx context.Context, r *certificatesv1.CertificateSigningRequest) error {
			if end := deadline(r); end.After(env.Clock.Now()) {
				c.EnqueueAt(r.Name, end)
				return nil
			}
			return env.Client().CertificatesV1().CertificateSigningRequests().Delete(ctx, r.Name, metav1.DeleteOptions{
				Preconditions: &metav1.Preconditions{UID: &r.UID, ResourceVersion: &r.ResourceVersion},
			})
		})
	return c, nil
}

// deadline returns when a request is deleted. An approved request without a certificate counts as pending.
func deadline(r *certificatesv1.CertificateSigningRequest) time.Time {
	end := r.CreationTimestamp.Add(pending)
	sooner := func(t time.Time) {
		if t.Before(end) {
			end = t
		}
	}
	for _, t := range []certificatesv1.RequestConditionType{certificatesv1.CertificateApproved,
		certificatesv1.CertificateDenied, certificatesv1.CertificateFailed} {
		condition := csr.Has(r, t)
		if condition == nil || t == certificatesv1.CertificateApproved && len(r.Status.Certificate) == 0 {
			continue
		}
		sooner(condition.LastUpdateTime.Add(answered))
	}
	if block, _ := pem.Decode(r.Status.Certificate); block != nil {
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil {
			sooner(cert.NotAfter)
		}
	}
	return end
}
