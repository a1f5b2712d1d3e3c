package apiserver

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
)

// Attributes are what an Authorizer decides by. Path is set for requests that are not on a
// resource; all fields from Group on are empty then.
type Attributes struct {
	User *authn.User
	Verb string
	Path string

	Group, Version, Resource, Subresource string
	Namespace, Name                       string
}

// Authorizer decides whether a request may be made. The reason is told to the caller.
type Authorizer interface {
	Authorize(ctx context.Context, a Attributes) (allowed bool, reason string, err error)
}

// AllowAuthenticated allows everything to everyone who has shown a good credential.
type AllowAuthenticated struct{}

// Authorize implements Authorizer.
func (AllowAuthenticated) Authorize(_ context.Context, a Attributes) (bool, string, error) {
	return a.User.Authenticated() || publicPaths[a.Path], "", nil
}

func attributesOf(r *request) Attributes {
	return Attributes{
		User: r.user(), Verb: r.verb,
		Group: r.res.Group, Version: r.res.Version, Resource: r.res.Plural, Subresource: r.subresource,
		Namespace: r.namespace, Name: r.name,
	}
}

func (s *Server) authorize(ctx context.Context, a Attributes) error {
	allowed, reason, err := s.Authorizer.Authorize(ctx, a)
	if err != nil {
		return fmt.Errorf("authorizing: %w", err)
	}
	if allowed {
		return nil
	}
	if !a.User.Authenticated() {
		return unauthorized() // who has not said who he is, is asked to
	}
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
