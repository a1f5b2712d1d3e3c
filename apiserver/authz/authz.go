// Package authz decides whether a user may make a request.
//
// An Authorizer takes Attributes, which are a user and one request, and returns a Decision, and for denials a
// reason for the client. A Union asks its members in turn (the order of --authorization-mode), and the first one
// with an opinion decides:
//
//	rbac.go     roles and bindings, by an index from subjects to rules   (rules.go: one role's rules)
//	node.go     the rights of a kubelet, derived from the pods of its node
//	webhook.go  another server's opinion, cached for a while   (conditions.go: its match conditions)
//
// A Configuration (config.go) lists the members and their order. It may change while the server runs
// (authorizers.go).
//
// policy*.go contain the roles and bindings that every cluster has; reconcile.go adds the ones that an existing
// cluster lacks; covers.go decides whether rights include others, so that users cannot grant rights that they do
// not have.
//
// The package does not know the store: its callers pass objects, and it reads others through Cluster.
package authz

import (
	"context"
	"errors"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
)

// Attributes are the input of an Authorizer's decision. Path is set for requests that are not about a resource;
// then all fields from Group on are empty.
type Attributes struct {
	User *authn.User
	Verb string
	Path string

	Group, Version, Resource, Subresource string
	Namespace, Name                       string
	// Fields is the field selector of a list or a watch, if it has a valid one.
	Fields fields.Requirements
	// Labels is its label selector as the client wrote it. An invalid one does not narrow the request.
	Labels string
}

// Decision is an authorizer's answer. The zero value leaves the decision to other authorizers; if none allows the
// request, it is denied.
type Decision uint8

// The decisions. Deny is final, even if other authorizers follow.
const (
	NoOpinion Decision = iota
	Allow
	Deny
)

// Authorizer decides whether a request may be made. It is safe for concurrent use. An error never accompanies
// Allow; it is the reason for the decision.
type Authorizer interface {
	Authorize(ctx context.Context, a *Attributes) (d Decision, reason string, err error)
}

// Lister lists the rights of a user in a namespace, as far as rules can express them; incomplete reports whether
// there may be more. The rules must not be changed.
type Lister interface {
	RulesFor(user *authn.User, namespace string) (list []rbacv1.PolicyRule, incomplete bool, err error)
}

// Union asks its members in turn. The group system:masters may do everything without asking them, so that a cluster
// with a broken policy can be repaired.
type Union []Authorizer

// Authorize implements Authorizer.
func (u Union) Authorize(ctx context.Context, a *Attributes) (Decision, string, error) {
	if a.User.In(authn.GroupMasters) {
		return Allow, "", nil
	}
	var (
		reasons string
		errs    error
	)
	for _, member := range u {
		d, reason, err := member.Authorize(ctx, a)
		if err != nil {
			errs = errors.Join(errs, err)
		}
		if d != NoOpinion {
			return d, reason, err
		}
		if reason != "" {
			if reasons != "" {
				reasons += "\n"
			}
			reasons += reason
		}
	}
	return NoOpinion, reasons, errs
}

// RulesFor implements Lister: it returns the rights that the members grant together.
func (u Union) RulesFor(user *authn.User, namespace string) (all []rbacv1.PolicyRule, incomplete bool, errs error) {
	for _, member := range u {
		lister, ok := member.(Lister)
		if !ok {
			continue
		}
		list, more, err := lister.RulesFor(user, namespace)
		all, incomplete, errs = append(all, list...), incomplete || more, errors.Join(errs, err)
	}
	return all, incomplete, errs
}

// AlwaysAllow allows every request, even without a credential.
type AlwaysAllow struct{}

// Authorize implements Authorizer.
func (AlwaysAllow) Authorize(context.Context, *Attributes) (Decision, string, error) {
	return Allow, "", nil
}

// RulesFor implements Lister.
func (AlwaysAllow) RulesFor(*authn.User, string) ([]rbacv1.PolicyRule, bool, error) {
	return Everything, false, nil
}

// Everything contains the rights of cluster-admin.
var Everything = []rbacv1.PolicyRule{on("*", "*", "*"), at("*", "*")}

// AlwaysDeny denies every request.
type AlwaysDeny struct{}

// Authorize implements Authorizer.
func (AlwaysDeny) Authorize(context.Context, *Attributes) (Decision, string, error) {
	return NoOpinion, "Everything is forbidden.", nil
}
