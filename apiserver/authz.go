package apiserver

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-chi/chi/v5"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation/path"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/apiserver/authz"
)

// newAuthorizer is the authorizers of Options.AuthorizationModes, in their order.
func (s *Server) newAuthorizer() (authz.Union, error) {
	var union authz.Union
	for _, mode := range s.AuthorizationModes {
		switch mode {
		case "RBAC":
			union = append(union, s.policy.rbac)
			s.policy.used = true
		case "Node":
			union = append(union, authz.NewNode(nodeCluster{s.cluster}))
		case "Webhook":
			if s.AuthorizationWebhook == nil {
				return nil, errors.New("authorization mode Webhook needs a webhook")
			}
			union = append(union, s.AuthorizationWebhook)
		case "AlwaysAllow":
			union = append(union, authz.AlwaysAllow{})
		case "AlwaysDeny":
			union = append(union, authz.AlwaysDeny{})
		default:
			return nil, fmt.Errorf("unknown authorization mode %q, want one of AlwaysAllow, AlwaysDeny, Node, RBAC, Webhook", mode)
		}
	}
	return union, nil
}

// attributesOf are those of a request on a resource.
func attributesOf(r *request) authz.Attributes {
	a := authz.Attributes{
		User: r.user(), Verb: r.verb,
		Group: r.res.Group, Version: r.res.Version, Resource: r.res.Plural, Subresource: r.subresource,
		Namespace: r.namespace, Name: r.name,
	}
	if r.isNamespace() {
		a.Namespace = r.name // so that rights within a namespace are rights on it
	}
	if text := r.query.Get("fieldSelector"); text != "" {
		selectFields(&a, text)
	}
	return a
}

// selectFields notes what a list is narrowed to: one that is narrowed to a name is a request about
// that name. A deletecollection never is, so that a right to objects by their names does not include it.
// What is wrong with the selector is for the verb to say.
func selectFields(a *authz.Attributes, text string) {
	if a.Verb != "list" && a.Verb != "watch" && a.Verb != "deletecollection" {
		return
	}
	selector, err := fields.ParseSelector(text)
	if err != nil {
		return
	}
	a.Fields = selector.Requirements()
	if a.Verb == "deletecollection" {
		return
	}
	if name, ok := selector.RequiresExactMatch("metadata.name"); ok && a.Name == "" && len(path.IsValidPathSegmentName(name)) == 0 {
		a.Name = name
	}
}

// unresolved are the attributes of a request on a resource that is not served. Who may not ask for it
// is not told that it is not there.
func unresolved(r *request) authz.Attributes {
	route := chi.RouteContext(r.Context())
	return authz.Attributes{
		User: r.user(), Verb: r.verb,
		Group: route.URLParam("group"), Version: route.URLParam("version"), Resource: route.URLParam("resource"),
		Subresource: route.URLParam("subresource"), Namespace: route.URLParam("namespace"), Name: route.URLParam("name"),
	}
}

// authorize refuses what the caller may not do. A refusal that came from memory is checked once
// more when memory is as new as etcd: who has just been given a right may use it.
func (s *Server) authorize(ctx context.Context, a authz.Attributes) error {
	decision, reason, err := s.decide(ctx, &a)
	if decision == authz.Allow {
		return nil
	}
	if err != nil {
		s.Log.Warn("an authorizer failed", "user", a.User.Name, "error", err)
	}
	return forbidden(&a, reason)
}

// decide asks the authorizers.
func (s *Server) decide(ctx context.Context, a *authz.Attributes) (authz.Decision, string, error) {
	known := s.Store.Frontier()
	decision, reason, err := s.authorizer.Authorize(ctx, a)
	if decision != authz.NoOpinion || !a.User.Authenticated() {
		return decision, reason, err
	}
	if newest, failed := s.Store.Revision(ctx); failed != nil || newest == known {
		return decision, reason, err
	}
	return s.authorizer.Authorize(ctx, a)
}

func forbidden(a *authz.Attributes, reason string) error {
	name := a.User.Name
	if reason != "" {
		reason = ": " + reason
	}
	if a.Path != "" {
		return apierrors.NewForbidden(schema.GroupResource{}, "", fmt.Errorf("User %q cannot %s path %q%s", name, a.Verb, a.Path, reason))
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
		fmt.Errorf("User %q cannot %s resource %q in API group %q %s%s", name, a.Verb, resource, a.Group, where, reason))
}
