// Package csrsigning issues the certificates of approved CertificateSigningRequests for Kubernetes' own
// signers: client certificates of users and of kubelets, serving certificates of kubelets, and any certificate
// for legacy-unknown. A request that its signer must not sign gets the condition Failed.
// https://kubernetes.io/docs/reference/access-authn-authz/certificate-signing-requests/#kubernetes-signers
package csrsigning

import (
	"context"
	"fmt"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
	"github.com/coxswain-dev/coxswain/controllers/lib/csr"
)

type signing struct {
	client      func() kubernetes.Interface
	authorities map[string]*authority
}

// New returns the controller. Its keys are CertificateSigningRequests. It signs for the signers that have a CA
// in Settings.Signing; without any CA it does nothing.
func New(env *controller.Env) (*controller.Controller, error) {
	settings := env.Settings.Signing
	s := &signing{client: env.Client, authorities: map[string]*authority{}}
	for signer, pair := range map[string]controller.KeyPair{
		certificatesv1.KubeAPIServerClientSignerName:        settings.KubeAPIServerClient,
		certificatesv1.KubeAPIServerClientKubeletSignerName: settings.KubeletClient,
		certificatesv1.KubeletServingSignerName:             settings.KubeletServing,
		"kubernetes.io/legacy-unknown":                      settings.LegacyUnknown,
	} {
		if pair.Empty() {
			pair = settings.Default
		}
		if pair.Empty() {
			continue
		}
		a := &authority{pair: pair, longest: settings.Duration, clock: env.Clock}
		if _, _, err := a.load(); err != nil {
			return nil, fmt.Errorf("%s: %w", signer, err)
		}
		s.authorities[signer] = a
	}
	return csr.New(env, "certificatesigningrequest-signing-controller", s.reconcile), nil
}

func (s *signing) reconcile(ctx context.Context, r *certificatesv1.CertificateSigningRequest) error {
	if len(r.Status.Certificate) > 0 || csr.Has(r, certificatesv1.CertificateApproved) == nil ||
		csr.Has(r, certificatesv1.CertificateDenied) != nil || csr.Has(r, certificatesv1.CertificateFailed) != nil {
		return nil
	}
	a := s.authorities[r.Spec.SignerName]
	if a == nil {
		return nil // another controller signs for this signer
	}
	r = r.DeepCopy()
	request, err := csr.Parse(r)
	if err == nil {
		err = csr.CheckSigner(r, request)
	}
	if err == nil {
		err = request.CheckSignature()
	}
	if err != nil {
		r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
			Type: certificatesv1.CertificateFailed, Status: corev1.ConditionTrue, Reason: "SignerValidationFailure",
			Message: err.Error(),
		})
	} else if r.Status.Certificate, err = a.issue(r, request); err != nil {
		return err
	}
	_, err = s.client().CertificatesV1().CertificateSigningRequests().UpdateStatus(ctx, r, metav1.UpdateOptions{})
	return err
}
