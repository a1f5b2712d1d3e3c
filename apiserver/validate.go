package apiserver

import (
	"context"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
	"github.com/coxswain-dev/coxswain/apiserver/strategy"
)

// validate checks an object that is about to be created (old is nil) or updated.
func (s *Server) validate(ctx context.Context, r *request, obj, old api.Object) error {
	name := obj.GetName()
	if name == "" {
		name = obj.GetGenerateName()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	errs := s.permit(ctx, r, r.res.Permit, obj, old)
	return invalidObject(r.res, name, append(errs, strategy.Validate(r.res, obj, old)...))
}

// validatePart checks what a write to a subresource makes of old.
func (s *Server) validatePart(ctx context.Context, r *request, sub *api.Subresource, obj, old api.Object) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var errs field.ErrorList
	if sub.Validate != nil {
		errs = sub.Validate(obj, old)
	}
	if sub.Metadata != 0 {
		errs = append(strategy.ValidateMetadata(r.res, obj, old), errs...)
	}
	errs = r.res.ValidateReferences(errs, obj, old)
	return invalidObject(r.res, r.name, append(errs, s.permit(ctx, r, sub.Permit, obj, old)...))
}

// caller answers what a registration's Permit asks about a request (api.Caller).
type caller struct {
	s   *Server
	ctx context.Context
	r   *request
}

var _ api.Caller = caller{}

// User implements api.Caller.
func (c caller) User() authenticationv1.UserInfo { return c.r.user().Info() }

// Verb implements api.Caller.
func (c caller) Verb() string { return c.r.verb }

// May implements api.Caller.
func (c caller) May(verb, group, resource, subresource, namespace, name string) bool {
	decision, _, _ := c.s.authorizer.Authorize(c.ctx, &authz.Attributes{
		User: c.r.user(), Verb: verb,
		Group: group, Version: "v1", Resource: resource, Subresource: subresource, Namespace: namespace, Name: name,
	})
	return decision == authz.Allow
}

// NamespaceLabels implements api.Caller.
func (c caller) NamespaceLabels(name string) (map[string]string, error) {
	ns, err := c.s.cluster.Get(c.ctx, corev1.Resource("namespaces"), "", name)
	if err != nil {
		return nil, err
	}
	return ns.GetLabels(), nil
}

// permit are the errors of a Permit, which may be nil.
func (s *Server) permit(ctx context.Context, r *request, p api.Permit, obj, old api.Object) field.ErrorList {
	if p == nil {
		return nil
	}
	return p(caller{s: s, ctx: ctx, r: r}, obj, old)
}
