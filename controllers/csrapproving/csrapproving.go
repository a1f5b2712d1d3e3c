// Package csrapproving approves the client certificates that kubelets request, if the requester has the right:
// certificatesigningrequests/selfnodeclient for its own name, …/nodeclient for the name of any node.
//
// It also approves serving certificates of nodes, which Kubernetes leaves to administrators and cloud
// controllers. The requester is the node itself, or a user with the right …/nodeserver. The signing CA must
// sign only such certificates. The certificate may only contain names and addresses of the Node that no other
// object in the cluster has. An administrator decides about all other requests.
// https://kubernetes.io/docs/reference/access-authn-authz/kubelet-tls-bootstrapping/#approval
package csrapproving

import (
	"context"
	"fmt"
	"slices"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
	"github.com/coxswain-dev/coxswain/controllers/lib/csr"
)

type approver struct {
	client  func() kubernetes.Interface
	clock   clock.PassiveClock
	events  record.EventRecorder
	cluster claims
	// servingAlone reports whether the CA of serving certificates signs only these.
	servingAlone func() (bool, error)
}

const name = "certificatesigningrequest-approving-controller"

// New returns the controller. Its keys are CertificateSigningRequests.
func New(env *controller.Env) (*controller.Controller, error) {
	signing, root := env.Settings.Signing, env.RootCA
	a := &approver{client: env.Client, clock: env.Clock, events: env.Recorder(name),
		servingAlone: func() (bool, error) { return signing.KubeletServingAlone(root) }}
	c := csr.New(env, name, a.reconcile)
	a.cluster = newClaims(env, c)
	return c, nil
}

func (a *approver) reconcile(ctx context.Context, r *certificatesv1.CertificateSigningRequest) error {
	if len(r.Status.Certificate) > 0 || !slices.Contains(signers, r.Spec.SignerName) ||
		csr.Has(r, certificatesv1.CertificateApproved) != nil || csr.Has(r, certificatesv1.CertificateDenied) != nil {
		return nil
	}
	request, err := csr.Parse(r)
	if err != nil || csr.CheckSigner(r, request) != nil {
		return nil // the API server rejects an unreadable request; an administrator decides about the others
	}
	if r.Spec.SignerName == certificatesv1.KubeletServingSignerName {
		return a.serving(ctx, r, request)
	}
	for _, kind := range []struct {
		subresource, message string
		applies              bool
	}{
		{"selfnodeclient", "Auto approving self kubelet client certificate after SubjectAccessReview.",
			r.Spec.Username == request.Subject.CommonName},
		{"nodeclient", "Auto approving kubelet client certificate after SubjectAccessReview.", true},
	} {
		if !kind.applies {
			continue
		}
		allowed, err := a.may(ctx, r, kind.subresource)
		if err != nil {
			return err
		}
		if allowed {
			return a.approve(ctx, r, kind.message)
		}
	}
	// The requester may get the right later, and no watch event would announce that.
	return fmt.Errorf("%w: %q is a kubelet's request, and %s may not make it", controller.ErrRequeue, r.Name,
		r.Spec.Username)
}

// signers lists the signers of the requests that the controller considers.
var signers = []string{certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.KubeletServingSignerName}

// may reports, by a SubjectAccessReview, whether the requester of the certificate has the right.
func (a *approver) may(ctx context.Context, r *certificatesv1.CertificateSigningRequest,
	subresource string) (bool, error) {
	extra := map[string]authorizationv1.ExtraValue{}
	for key, values := range r.Spec.Extra {
		extra[key] = authorizationv1.ExtraValue(values)
	}
	review, err := a.client().AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: r.Spec.Username, UID: r.Spec.UID, Groups: r.Spec.Groups, Extra: extra,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Group: certificatesv1.GroupName, Resource: "certificatesigningrequests", Subresource: subresource,
				Verb: "create", Version: "*",
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	return review.Status.Allowed, nil
}

func (a *approver) approve(ctx context.Context, r *certificatesv1.CertificateSigningRequest, message string) error {
	return a.decide(ctx, r, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Reason: "AutoApproved", Message: message})
}

func (a *approver) deny(ctx context.Context, r *certificatesv1.CertificateSigningRequest, message string) error {
	return a.decide(ctx, r, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateDenied, Reason: "AutoDenied", Message: message})
}

func (a *approver) decide(ctx context.Context, r *certificatesv1.CertificateSigningRequest,
	decision certificatesv1.CertificateSigningRequestCondition) error {
	decision.Status = corev1.ConditionTrue
	r = r.DeepCopy()
	r.Status.Conditions = append(r.Status.Conditions, decision)
	_, err := a.client().CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, r.Name, r,
		metav1.UpdateOptions{})
	return err
}
