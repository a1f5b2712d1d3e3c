package authz

import (
	"maps"
	"reflect"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Reconcile returns the role or binding that should replace have: a copy of have with the rules, subjects, labels
// and annotations of want that it lacks. Additional ones stay. The result is nil if have lacks none, or if the
// annotation autoupdate=false protects have. recreate reports that a binding refers to another role, and so must be
// deleted and created again. The kinds are those of Policy; have is not changed.
//
// k8s.io/component-helpers/auth/rbac/reconciliation needs a client of RBAC objects, and compares with its own
// Covers. Its check of the cluster roles of Bootstrap would take 49 ms of a server's start instead of 4.5 ms.
func Reconcile(have, want metav1.Object) (result metav1.Object, recreate bool) {
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

// add returns have with the labels or annotations of want that it does not set.
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
