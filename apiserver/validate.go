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

// validate checks the write's object before it is created (without an old object) or updated.
func (s *Server) validate(ctx context.Context, wr *write) error {
	obj, old := wr.obj, wr.old
	name := obj.GetName()
	if name == "" {
		name = obj.GetGenerateName()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	errs := s.permit(ctx, wr.request, wr.res.Permit, obj, old)
	errs = append(errs, strategy.Validate(wr.res, obj, old)...)
	return s.check(ctx, wr, name, errs, "")
}

// validatePart checks the object that results from a write of a subresource.
func (s *Server) validatePart(ctx context.Context, wr *write) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	sub, obj, old := wr.part, wr.obj, wr.old
	var errs field.ErrorList
	if sub.Validate != nil {
		errs = sub.Validate(obj, old)
	}
	if sub.Metadata != 0 {
		errs = append(strategy.ValidateMetadata(wr.res, obj, old), errs...)
	}
	errs = wr.res.ValidateReferences(errs, obj, old)
	errs = append(errs, s.permit(ctx, wr.request, sub.Permit, obj, old)...)
	return s.check(ctx, wr, wr.request.name, errs, sub.Name)
}

// check adds the errors and warnings of a custom resource's schema, and returns all errors as one.
func (s *Server) check(ctx context.Context, wr *write, name string, errs field.ErrorList, subresource string) error {
	if wr.res.Check != nil {
		more, warnings, err := wr.res.Check(ctx, wr.obj, wr.old, subresource)
		if err != nil {
			return err
		}
		errs, wr.warnings = append(errs, more...), append(wr.warnings, warnings...)
	}
	return invalidObject(wr.res, name, errs)
}

// caller describes the user of a request to a registration's Permit (api.Caller).
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

// permit returns the errors of a Permit, which may be nil.
func (s *Server) permit(ctx context.Context, r *request, p api.Permit, obj, old api.Object) field.ErrorList {
	if p == nil {
		return nil
	}
	return p(caller{s: s, ctx: ctx, r: r}, obj, old)
}
