package review

import (
	"context"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
)

// The access reviews ask the authorizers what a request would ask them.

func (r *Reviewer) subjectAccess(ctx context.Context, review *authorizationv1.SubjectAccessReview) error {
	review.Status = r.access(ctx, subjectUser(&review.Spec), review.Spec.ResourceAttributes,
		review.Spec.NonResourceAttributes)
	return nil
}

func (r *Reviewer) localAccess(ctx context.Context, review *authorizationv1.LocalSubjectAccessReview) error {
	review.Status = r.access(ctx, subjectUser(&review.Spec), review.Spec.ResourceAttributes, nil)
	return nil
}

func (r *Reviewer) selfAccess(ctx context.Context, review *authorizationv1.SelfSubjectAccessReview) error {
	review.Status = r.access(ctx, authn.UserFrom(ctx), review.Spec.ResourceAttributes,
		review.Spec.NonResourceAttributes)
	return nil
}

// selfRules lists the caller's rights. Those that other authorizers than RBAC grant cannot be listed.
func (r *Reviewer) selfRules(ctx context.Context, review *authorizationv1.SelfSubjectRulesReview) error {
	if _, err := r.Authorizer.Memory.Revision(ctx); err != nil {
		return err
	}
	list, incomplete, err := r.Authorizer.RulesFor(authn.UserFrom(ctx), review.Spec.Namespace)
	status := authorizationv1.SubjectRulesReviewStatus{
		ResourceRules: []authorizationv1.ResourceRule{}, NonResourceRules: []authorizationv1.NonResourceRule{},
		Incomplete: incomplete,
	}
	if err != nil {
		status.EvaluationError = err.Error()
	}
	size := 0
	for i := range list {
		rule := &list[i]
		if size += sizeOf(rule); size > maxRules {
			status.Incomplete = true
			break
		}
		if len(rule.Resources) > 0 {
			status.ResourceRules = append(status.ResourceRules, authorizationv1.ResourceRule{Verbs: rule.Verbs,
				APIGroups: rule.APIGroups, Resources: rule.Resources, ResourceNames: rule.ResourceNames})
		}
		if len(rule.NonResourceURLs) > 0 {
			status.NonResourceRules = append(status.NonResourceRules, authorizationv1.NonResourceRule{
				Verbs: rule.Verbs, NonResourceURLs: rule.NonResourceURLs})
		}
	}
	review.Status = status
	return nil
}

// maxRules bounds the texts of a list of rights, in bytes. Kubernetes does not; a user may have roles of any number.
const maxRules = 4 << 20

func sizeOf(r *rbacv1.PolicyRule) (n int) {
	for _, list := range [][]string{r.Verbs, r.APIGroups, r.Resources, r.ResourceNames, r.NonResourceURLs} {
		for _, text := range list {
			n += len(text) + 1
		}
	}
	return n
}

// access is the answer to whether a user may do something. A refusal is made sure of.
func (r *Reviewer) access(ctx context.Context, user *authn.User, on *authorizationv1.ResourceAttributes,
	at *authorizationv1.NonResourceAttributes) authorizationv1.SubjectAccessReviewStatus {
	a := &authz.Attributes{User: user}
	if at != nil {
		a.Verb, a.Path = at.Verb, at.Path
	} else {
		*a = authz.Attributes{
			User: user, Verb: on.Verb, Group: on.Group, Version: on.Version, Resource: on.Resource,
			Subresource: on.Subresource,
			Namespace:   on.Namespace, Name: on.Name, Fields: fieldRequirements(on.FieldSelector),
			Labels: labelSelector(on.LabelSelector),
		}
	}
	decision, reason, err := r.Authorizer.Authorize(ctx, a)
	if decision == authz.NoOpinion {
		if _, failed := r.Authorizer.Memory.Revision(ctx); failed == nil {
			decision, reason, err = r.Authorizer.Rights.Authorize(ctx, a)
		}
	}
	status := authorizationv1.SubjectAccessReviewStatus{Allowed: decision == authz.Allow,
		Denied: decision == authz.Deny, Reason: reason}
	if err != nil {
		status.EvaluationError = err.Error()
	}
	return status
}

func subjectUser(spec *authorizationv1.SubjectAccessReviewSpec) *authn.User {
	user := &authn.User{Name: spec.User, UID: spec.UID, Groups: spec.Groups}
	for key, values := range spec.Extra {
		if user.Extra == nil {
			user.Extra = map[string][]string{}
		}
		user.Extra[key] = values
	}
	return user
}

// fieldRequirements are those of a field selector that authorizers know; one that is not understood narrows
// nothing.
func fieldRequirements(s *authorizationv1.FieldSelectorAttributes) (list fields.Requirements) {
	if s == nil {
		return nil
	}
	if s.RawSelector != "" {
		if selector, err := fields.ParseSelector(s.RawSelector); err == nil {
			return selector.Requirements()
		}
	}
	for _, r := range s.Requirements {
		if len(r.Values) != 1 {
			continue
		}
		switch r.Operator {
		case metav1.FieldSelectorOpIn:
			list = append(list, fields.Requirement{Field: r.Key, Operator: selection.Equals, Value: r.Values[0]})
		case metav1.FieldSelectorOpNotIn:
			list = append(list, fields.Requirement{Field: r.Key, Operator: selection.NotEquals, Value: r.Values[0]})
		}
	}
	return list
}

// These bound the label selector of a review, in bytes and in requirements. A list has its selector in its URL, which
// cannot be longer either.
const (
	maxSelector     = 64 << 10
	maxRequirements = 1000
)

// labelSelector is a label selector as text. A requirement that is not understood narrows nothing, nor does a selector
// of absurd size.
func labelSelector(s *authorizationv1.LabelSelectorAttributes) string {
	if s == nil || len(s.RawSelector) > maxSelector || len(s.Requirements) > maxRequirements {
		return ""
	}
	if s.RawSelector != "" {
		return s.RawSelector
	}
	var known labels.Requirements
	for _, r := range s.Requirements {
		one, err := metav1.LabelSelectorAsSelector(&metav1.LabelSelector{
			MatchExpressions: []metav1.LabelSelectorRequirement{r}})
		if err != nil {
			continue
		}
		requirements, _ := one.Requirements()
		known = append(known, requirements...)
	}
	text := labels.NewSelector().Add(known...).String()
	if len(text) > maxSelector {
		return ""
	}
	return text
}
