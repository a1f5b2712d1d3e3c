// Package review answers reviews, which clients create and the server does not store: SelfSubjectReview, TokenReview
// (token.go), SubjectAccessReview and its variants (access.go), and TokenRequest, a token for a service account
// (tokenrequest.go).
//
// A Reviewer gets a review that has been defaulted and validated, and fills in its status; the caller is the user of
// the context. Tokens issues tokens. Both use package authn and package authz, and read objects through the small
// interface Objects. The package knows no request and must not import the server.
package review

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
)

// Reviewer answers reviews. It is safe for concurrent use.
type Reviewer struct {
	Tokens     authn.TokenAuthenticator
	Authorizer *authz.Confirmed
	Clock      clock.PassiveClock
}

// reviewers answer the kinds that are registered as reviews. They are not part of the registrations, which are data:
// an answer needs the authenticators and authorizers of a server.
var reviewers = map[schema.GroupVersionKind]func(r *Reviewer, ctx context.Context, obj api.Object) error{
	authenticationv1.SchemeGroupVersion.WithKind("SelfSubjectReview"): answering((*Reviewer).self),
	authenticationv1.SchemeGroupVersion.WithKind("TokenReview"):       answering((*Reviewer).token),

	authorizationv1.SchemeGroupVersion.WithKind("SubjectAccessReview"):      answering((*Reviewer).subjectAccess),
	authorizationv1.SchemeGroupVersion.WithKind("LocalSubjectAccessReview"): answering((*Reviewer).localAccess),
	authorizationv1.SchemeGroupVersion.WithKind("SelfSubjectAccessReview"):  answering((*Reviewer).selfAccess),
	authorizationv1.SchemeGroupVersion.WithKind("SelfSubjectRulesReview"):   answering((*Reviewer).selfRules),
}

// answering adapts a function of one Go type to reviewers.
func answering[T api.Object](f func(r *Reviewer, ctx context.Context, review T) error) func(*Reviewer,
	context.Context, api.Object) error {
	return func(r *Reviewer, ctx context.Context, obj api.Object) error { return f(r, ctx, obj.(T)) }
}

// Answers reports whether a kind can be answered.
func Answers(kind schema.GroupVersionKind) bool { return reviewers[kind] != nil }

// Answer fills in the status of a review of a kind that can be answered.
func (r *Reviewer) Answer(ctx context.Context, kind schema.GroupVersionKind, review api.Object) error {
	answer := reviewers[kind]
	if answer == nil {
		return fmt.Errorf("no reviewer answers a %s", kind)
	}
	return answer(r, ctx, review)
}

// self returns the caller's own identity (KEP-3325).
func (r *Reviewer) self(ctx context.Context, review *authenticationv1.SelfSubjectReview) error {
	review.CreationTimestamp = metav1.NewTime(r.Clock.Now()).Rfc3339Copy()
	review.Status.UserInfo = authn.UserFrom(ctx).Info()
	return nil
}
