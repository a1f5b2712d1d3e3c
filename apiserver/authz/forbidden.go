package authz

import (
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Forbidden returns the error for a request that was not allowed, with kube-apiserver's text. The reason may be
// empty.
func Forbidden(a *Attributes, reason string) error {
	name := a.User.Name
	if reason != "" {
		reason = ": " + reason
	}
	if a.Path != "" {
		return apierrors.NewForbidden(schema.GroupResource{}, "", fmt.Errorf("User %q cannot %s path %q%s", name,
			a.Verb, a.Path, reason))
	}
	resource := a.Resource
	if a.Subresource != "" {
		resource += "/" + a.Subresource
	}
	where := "at the cluster scope"
	if a.Namespace != "" {
		where = fmt.Sprintf("in the namespace %q", a.Namespace)
	}
	return apierrors.NewForbidden(schema.GroupResource{Group: a.Group, Resource: a.Resource}, a.Name,
		fmt.Errorf("User %q cannot %s resource %q in API group %q %s%s", name, a.Verb, resource, a.Group,
			where, reason))
}
