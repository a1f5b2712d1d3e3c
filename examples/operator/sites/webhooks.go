package sites

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// The definition's schema and CEL rules need no operator, and should contain every rule that they can express. The
// webhooks do the rest: a default that depends on other fields, a warning that depends on another Site, a check of
// deletions, and the conversion of versions.

// Protected is the annotation of a Site that must not be deleted, with the value "true".
const Protected = "example.com/protected"

// RegisterWebhooks adds the webhooks to a manager. The manager's scheme must have all versions of Sites. The server
// mgr.GetWebhookServer() serves /mutate-example-com-v1-site, /validate-example-com-v1-site and /convert.
func RegisterWebhooks(mgr ctrl.Manager) error {
	return ctrl.NewWebhookManagedBy(mgr, &Site{}).
		WithDefaulter(defaulter{}).
		WithValidator(&validator{mgr.GetClient()}).
		Complete()
}

type defaulter struct{}

// Default implements admission.Defaulter. The default domain consists of the site's name and namespace.
func (defaulter) Default(_ context.Context, s *Site) error {
	if s.Spec.Domain == "" && s.Name != "" {
		s.Spec.Domain = fmt.Sprintf("%s.%s.example.org", s.Name, s.Namespace)
	}
	return nil
}

type validator struct{ client.Reader }

// ValidateCreate implements admission.Validator. It only warns of a domain that another site has: the directory can
// change at any time after this check, and it decides which site gets the domain.
func (v *validator) ValidateCreate(ctx context.Context, s *Site) (admission.Warnings, error) {
	var directory corev1.ConfigMap
	if err := v.Get(ctx, Directory, &directory); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	if owner := directory.Data[s.Spec.Domain]; owner != "" && owner != key(s) {
		return admission.Warnings{fmt.Sprintf("%s belongs to the site %s: this one waits for it", s.Spec.Domain,
			owner)}, nil
	}
	return nil, nil
}

// ValidateUpdate implements admission.Validator.
func (v *validator) ValidateUpdate(context.Context, *Site, *Site) (admission.Warnings, error) {
	return nil, nil
}

// ValidateDelete implements admission.Validator.
func (v *validator) ValidateDelete(_ context.Context, s *Site) (admission.Warnings, error) {
	if s.Annotations[Protected] == "true" {
		return nil, apierrors.NewForbidden(resource, s.Name,
			fmt.Errorf("it is protected: remove the annotation %s first", Protected))
	}
	return nil, nil
}
