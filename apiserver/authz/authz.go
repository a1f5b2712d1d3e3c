// Package authz decides what a user may do.
//
// What comes in: Attributes, which are a user and one request. What goes out: a Decision, and
// for refusals a reason that the caller is told. A Union asks its members in turn (the order
// of --authorization-mode) and the first that has an opinion decides:
//
//	rbac.go     roles and bindings, by an index from subjects to rules   (rules.go: one role's rules)
//	node.go     what a kubelet may, by the pods that its node runs
//	webhook.go  another server's opinion, remembered for a while
//
// policy*.go are the roles and bindings that every cluster has; reconcile.go says what an
// existing cluster lacks of them; covers.go whether rights hold others, for those who would
// hand out what they do not have.
//
// The package knows no store: objects are told to it, and asked for through Cluster.
package authz

import (
	"context"
	"errors"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/fields"

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
	// Fields is the field selector of a list or a watch, if it has a good one.
	Fields fields.Requirements
}

// Decision is an authorizer's answer. The zero value leaves the decision to others, and where
// none allows, the request is refused.
type Decision uint8

// The decisions. Deny ends the matter, whoever may be asked next.
const (
	NoOpinion Decision = iota
	Allow
	Deny
)

// Authorizer decides whether a request may be made. It is safe for concurrent use. An error
// goes with NoOpinion and tells why there is none.
type Authorizer interface {
	Authorize(ctx context.Context, a *Attributes) (d Decision, reason string, err error)
}

// Lister lists what it allows a user in a namespace, as far as rules can say that; incomplete where
// there may be more. The rules must not be changed.
type Lister interface {
	RulesFor(user *authn.User, namespace string) (list []rbacv1.PolicyRule, incomplete bool, err error)
}

// Union asks each in turn. The group system:masters is asked nothing: it may do everything, so
// that a cluster whose policy is broken can be mended.
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

// RulesFor implements Lister: what all of them allow.
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

// AlwaysAllow allows everything, also to those who have shown no credential.
type AlwaysAllow struct{}

// Authorize implements Authorizer.
func (AlwaysAllow) Authorize(context.Context, *Attributes) (Decision, string, error) {
	return Allow, "", nil
}

// RulesFor implements Lister.
func (AlwaysAllow) RulesFor(*authn.User, string) ([]rbacv1.PolicyRule, bool, error) {
	return Everything, false, nil
}

// Everything is what cluster-admin may.
var Everything = []rbacv1.PolicyRule{on("*", "*", "*"), at("*", "*")}

// AlwaysDeny refuses everything.
type AlwaysDeny struct{}

// Authorize implements Authorizer.
func (AlwaysDeny) Authorize(context.Context, *Attributes) (Decision, string, error) {
	return NoOpinion, "Everything is forbidden.", nil
}
