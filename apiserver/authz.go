package apiserver

import (
	"context"
	"net/url"

	"github.com/go-chi/chi/v5"
	"k8s.io/apimachinery/pkg/api/validation/path"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/coxswain-dev/coxswain/apiserver/audit"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
	"github.com/coxswain-dev/coxswain/apiserver/cluster"
	"github.com/coxswain-dev/coxswain/apiserver/review"
)

// newAuthorizer creates the authorizers of Options.Authorization, and the parts that use them.
func (s *Server) newAuthorizer(ctx context.Context) error {
	rbac, err := s.cluster.RBAC(ctx)
	if err != nil {
		return err
	}
	o := s.Authorization
	o.RBAC, o.Node, o.Log = rbac, authz.NewNode(cluster.Nodes{Cluster: s.cluster}), s.Log
	if s.authorizers, err = authz.New(o); err != nil {
		return err
	}
	s.authorizer.Rights = s.authorizers
	s.registry.MustRegister(s.authorizers.Metrics()...)
	s.escalation = authz.EscalationCheck{Authorizer: s.authorizer, RBAC: rbac, Memory: s.Store}
	s.reviewer = review.Reviewer{Tokens: s.authn, Authorizer: s.authorizer, Clock: s.Clock}
	return nil
}

// attributesOf returns the attributes of a request on a resource, for authorization and flow control.
func attributesOf(r *request) authz.Attributes {
	if r.res == nil {
		return unresolved(r)
	}
	a := authz.Attributes{
		User: r.user(), Verb: r.verb,
		Group: r.res.Group, Version: r.res.Version, Resource: r.res.Plural, Subresource: r.subresource,
		Namespace: r.namespace, Name: r.name,
	}
	if r.isNamespace() {
		a.Namespace = r.name // so that rights in a namespace include rights to the Namespace
	}
	addSelectors(&a, r.query)
	return a
}

// addSelectors adds the selectors of a list to its attributes. A list or watch that selects one name is authorized for
// that name. A deletecollection is not, so that a right to objects by their names does not include it. Errors in the
// selectors are ignored here; the verb reports them.
func addSelectors(a *authz.Attributes, params url.Values) {
	if a.Verb != "list" && a.Verb != "watch" && a.Verb != "deletecollection" {
		return
	}
	a.Labels = params.Get("labelSelector")
	text := params.Get("fieldSelector")
	if text == "" {
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
	if name, ok := selector.RequiresExactMatch("metadata.name"); ok && a.Name == "" &&
		len(path.IsValidPathSegmentName(name)) == 0 {
		a.Name = name
	}
}

// unresolved returns the attributes of a request on a resource that is not served. A client without a right to the
// resource does not learn that it does not exist.
func unresolved(r *request) authz.Attributes {
	route := chi.RouteContext(r.Context())
	return authz.Attributes{
		User: r.user(), Verb: r.verb,
		Group: route.URLParam("group"), Version: route.URLParam("version"), Resource: route.URLParam("resource"),
		Subresource: route.URLParam("subresource"), Namespace: route.URLParam("namespace"),
		Name: route.URLParam("name"),
	}
}

// authorize returns an error if the user of the attributes has no right to the request.
func (s *Server) authorize(ctx context.Context, a authz.Attributes) error {
	return s.authorizeFor(ctx, a, nil)
}

// authorizeFor implements authorize, and adds the decision to an audit record, which may be nil.
func (s *Server) authorizeFor(ctx context.Context, a authz.Attributes, record *audit.Request) error {
	timer := record.Begin(audit.Authorization)
	decision, reason, err := s.authorizer.Authorize(ctx, &a)
	timer.End()
	record.Authorized(decision, reason, err)
	if decision == authz.Allow || ctx.Err() != nil {
		return ctx.Err() // a request that has ended does not go on, even if it is allowed
	}
	if err != nil {
		s.Log.Warn("failed to authorize a request", "user", a.User.Name, "err", err)
	}
	return authz.Forbidden(&a, reason)
}
