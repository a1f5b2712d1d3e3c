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

// The access reviews ask the authorizers the same question as a request would.

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

// selfRules lists the caller's rights. Only rights that RBAC grants can be listed.
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

// maxRules limits the size of a list of rights, in bytes. Kubernetes has no limit; a user may have any number of roles.
const maxRules = 4 << 20

func sizeOf(r *rbacv1.PolicyRule) (n int) {
	for _, list := range [][]string{r.Verbs, r.APIGroups, r.Resources, r.ResourceNames, r.NonResourceURLs} {
		for _, text := range list {
			n += len(text) + 1
		}
	}
	return n
}

// access decides whether a user may do something. If no authorizer allows it, the decision is repeated when memory is
// as new as etcd: a right may just have been granted.
func (r *Reviewer) access(ctx context.Context, user *authn.User, resource *authorizationv1.ResourceAttributes,
	path *authorizationv1.NonResourceAttributes) authorizationv1.SubjectAccessReviewStatus {
	a := &authz.Attributes{User: user}
	if path != nil {
		a.Verb, a.Path = path.Verb, path.Path
	} else {
		*a = authz.Attributes{
			User: user, Verb: resource.Verb, Group: resource.Group, Version: resource.Version,
			Resource: resource.Resource, Subresource: resource.Subresource,
			Namespace: resource.Namespace, Name: resource.Name, Fields: fieldRequirements(resource.FieldSelector),
			Labels: labelSelector(resource.LabelSelector),
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

// fieldRequirements returns the requirements of a field selector that authorizers understand. Others are ignored:
// they do not narrow the request.
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

// These limit the label selector of a review, in bytes and in requirements. A list has its selector in its URL, which
// cannot be longer either.
const (
	maxSelector     = 64 << 10
	maxRequirements = 1000
)

// labelSelector returns a label selector as text. Requirements that are not understood are ignored, and so is a
// selector of absurd size.
func labelSelector(s *authorizationv1.LabelSelectorAttributes) string {
	if s == nil || len(s.RawSelector) > maxSelector || len(s.Requirements) > maxRequirements {
		return ""
	}
	if s.RawSelector != "" {
		return s.RawSelector
	}
	var understood labels.Requirements
	for _, r := range s.Requirements {
		one, err := metav1.LabelSelectorAsSelector(&metav1.LabelSelector{
			MatchExpressions: []metav1.LabelSelectorRequirement{r}})
		if err != nil {
			continue
		}
		requirements, _ := one.Requirements()
		understood = append(understood, requirements...)
	}
	text := labels.NewSelector().Add(understood...).String()
	if len(text) > maxSelector {
		return ""
	}
	return text
}
