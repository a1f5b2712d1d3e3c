package authz

import (
	"maps"
	"reflect"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What a cluster lacks of the policy is added to what it has: rules, subjects, labels and
// annotations. What it has besides stays, and an object whose annotation says autoupdate=false is
// left alone.

// Reconcile is the role or binding that there should be in the place of have; nil when that is have
// itself. A binding that binds another role must be made anew: anew says so. The kinds are those of
// Policy; have is not changed.
func Reconcile(have, want metav1.Object) (result metav1.Object, anew bool) {
	if have.GetAnnotations()[rbacv1.AutoUpdateAnnotationKey] == "false" {
		return nil, false
	}
	var changed bool
	switch want := want.(type) {
	case *rbacv1.ClusterRole:
		have := have.(*rbacv1.ClusterRole).DeepCopy()
		if want.AggregationRule != nil {
			changed = addSelectors(&have.AggregationRule, want.AggregationRule)
		} else {
			changed = addRules(&have.Rules, want.Rules)
		}
		result = have
	case *rbacv1.Role:
		have := have.(*rbacv1.Role).DeepCopy()
		changed, result = addRules(&have.Rules, want.Rules), have
	case *rbacv1.ClusterRoleBinding:
		have := have.(*rbacv1.ClusterRoleBinding).DeepCopy()
		if have.RoleRef != want.RoleRef {
			return want.DeepCopy(), true
		}
		changed, result = addSubjects(&have.Subjects, want.Subjects), have
	case *rbacv1.RoleBinding:
		have := have.(*rbacv1.RoleBinding).DeepCopy()
		if have.RoleRef != want.RoleRef {
			return want.DeepCopy(), true
		}
		changed, result = addSubjects(&have.Subjects, want.Subjects), have
	}
	labels, moreLabels := add(result.GetLabels(), want.GetLabels())
	annotations, moreAnnotations := add(result.GetAnnotations(), want.GetAnnotations())
	if !changed && !moreLabels && !moreAnnotations {
		return nil, false
	}
	result.SetLabels(labels)
	result.SetAnnotations(annotations)
	return result, false
}

func addRules(have *[]rbacv1.PolicyRule, want []rbacv1.PolicyRule) bool {
	missing := Covers(*have, want)
	*have = append(*have, missing...)
	return len(missing) > 0
}

func addSubjects(have *[]rbacv1.Subject, want []rbacv1.Subject) (changed bool) {
	for _, s := range want {
		if !slices.Contains(*have, s) {
			*have, changed = append(*have, s), true
		}
	}
	return changed
}

func addSelectors(have **rbacv1.AggregationRule, want *rbacv1.AggregationRule) (changed bool) {
	if *have == nil {
		*have = &rbacv1.AggregationRule{}
	}
	for _, s := range want.ClusterRoleSelectors {
		list := &(*have).ClusterRoleSelectors
		if !slices.ContainsFunc(*list, func(o metav1.LabelSelector) bool { return reflect.DeepEqual(o, s) }) {
			*list, changed = append(*list, *s.DeepCopy()), true
		}
	}
	return changed
}

// add adds the labels or annotations that are not set.
func add(have, want map[string]string) (result map[string]string, changed bool) {
	result = maps.Clone(have)
	for key, value := range want {
		if _, ok := have[key]; ok {
			continue
		}
		if result == nil {
			result = map[string]string{}
		}
		result[key], changed = value, true
	}
	return result, changed
}
