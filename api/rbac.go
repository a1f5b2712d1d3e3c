package api

import (
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/naming"
)

const rbacGroup = rbacv1.GroupName

// segmentName allows what a path segment may hold: "system:admin" is a role's name.
func segmentName(name string, _ bool) []string { return path.IsValidPathSegmentName(name) }

func roles() *Resource {
	return &Resource{
		Group: rbacGroup, Version: "v1", Kind: "Role", Plural: "roles", Namespaced: true,
		New:            func() Object { return &rbacv1.Role{} },
		NewList:        func() runtime.Object { return &rbacv1.RoleList{} },
		CreateOnUpdate: true,

		ValidateName: segmentName,
		Validate: checked(func(r *rbacv1.Role) field.ErrorList {
			return validateRules(r.Rules, true, field.NewPath("rules"))
		}),

		Columns: []metav1.TableColumnDefinition{nameColumn, createdColumn},
		Cells:   row(func(r *rbacv1.Role) []any { return []any{r.Name, createdCell(r.CreationTimestamp)} }),
	}
}

func clusterRoles() *Resource {
	return &Resource{
		Group: rbacGroup, Version: "v1", Kind: "ClusterRole", Plural: "clusterroles",
		New:            func() Object { return &rbacv1.ClusterRole{} },
		NewList:        func() runtime.Object { return &rbacv1.ClusterRoleList{} },
		CreateOnUpdate: true,

		ValidateName: segmentName,
		Validate:     checked(validateClusterRole),

		Columns: []metav1.TableColumnDefinition{nameColumn, createdColumn},
		Cells:   row(func(r *rbacv1.ClusterRole) []any { return []any{r.Name, createdCell(r.CreationTimestamp)} }),
	}
}

func roleBindings() *Resource {
	return &Resource{
		Group: rbacGroup, Version: "v1", Kind: "RoleBinding", Plural: "rolebindings", Namespaced: true,
		New:            func() Object { return &rbacv1.RoleBinding{} },
		NewList:        func() runtime.Object { return &rbacv1.RoleBindingList{} },
		CreateOnUpdate: true,

		Default:      with(func(b *rbacv1.RoleBinding) { defaultBinding(&b.RoleRef, b.Subjects) }),
		ValidateName: segmentName,
		Validate: checked(func(b *rbacv1.RoleBinding) field.ErrorList {
			return validateBinding(b.RoleRef, b.Subjects, true)
		}),
		ValidateUpdate: checked2(func(b, old *rbacv1.RoleBinding) field.ErrorList { return sameRole(b.RoleRef, old.RoleRef) }),

		Columns: bindingColumns("roleBinding", rbacv1.RoleBinding{}.SwaggerDoc()["roleRef"]),
		Cells: row(func(b *rbacv1.RoleBinding) []any {
			return bindingCells(b.Name, b.CreationTimestamp, b.RoleRef, b.Subjects)
		}),
	}
}

func clusterRoleBindings() *Resource {
	return &Resource{
		Group: rbacGroup, Version: "v1", Kind: "ClusterRoleBinding", Plural: "clusterrolebindings",
		New:            func() Object { return &rbacv1.ClusterRoleBinding{} },
		NewList:        func() runtime.Object { return &rbacv1.ClusterRoleBindingList{} },
		CreateOnUpdate: true,

		Default:      with(func(b *rbacv1.ClusterRoleBinding) { defaultBinding(&b.RoleRef, b.Subjects) }),
		ValidateName: segmentName,
		Validate: checked(func(b *rbacv1.ClusterRoleBinding) field.ErrorList {
			return validateBinding(b.RoleRef, b.Subjects, false)
		}),
		ValidateUpdate: checked2(func(b, old *rbacv1.ClusterRoleBinding) field.ErrorList { return sameRole(b.RoleRef, old.RoleRef) }),

		Columns: bindingColumns("clusterRoleBinding", rbacv1.ClusterRoleBinding{}.SwaggerDoc()["roleRef"]),
		Cells: row(func(b *rbacv1.ClusterRoleBinding) []any {
			return bindingCells(b.Name, b.CreationTimestamp, b.RoleRef, b.Subjects)
		}),
	}
}

func defaultBinding(ref *rbacv1.RoleRef, subjects []rbacv1.Subject) {
	setDefault(&ref.APIGroup, rbacGroup)
	for i := range subjects {
		if kind := subjects[i].Kind; kind == rbacv1.UserKind || kind == rbacv1.GroupKind {
			setDefault(&subjects[i].APIGroup, rbacGroup)
		}
	}
}

func validateRules(rules []rbacv1.PolicyRule, namespaced bool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range rules {
		if field.Enough(errs) {
			break
		}
		r, at := &rules[i], path.Index(i)
		if len(r.Verbs) == 0 {
			errs = append(errs, field.Required(at.Child("verbs"), "verbs must contain at least one value"))
		}
		if len(r.NonResourceURLs) > 0 {
			if namespaced {
				errs = append(errs, field.Invalid(at.Child("nonResourceURLs"), r.NonResourceURLs, "namespaced rules cannot apply to non-resource URLs"))
			}
			if len(r.APIGroups)+len(r.Resources)+len(r.ResourceNames) > 0 {
				errs = append(errs, field.Invalid(at.Child("nonResourceURLs"), r.NonResourceURLs, "rules cannot apply to both regular resources and non-resource URLs"))
			}
			continue
		}
		if len(r.APIGroups) == 0 {
			errs = append(errs, field.Required(at.Child("apiGroups"), "resource rules must supply at least one api group"))
		}
		if len(r.Resources) == 0 {
			errs = append(errs, field.Required(at.Child("resources"), "resource rules must supply at least one resource"))
		}
	}
	return errs
}

func validateClusterRole(r *rbacv1.ClusterRole) field.ErrorList {
	errs := validateRules(r.Rules, false, field.NewPath("rules"))
	if r.AggregationRule == nil {
		return errs
	}
	at := field.NewPath("aggregationRule", "clusterRoleSelectors")
	if len(r.AggregationRule.ClusterRoleSelectors) == 0 {
		errs = append(errs, field.Required(at, "at least one clusterRoleSelector required if aggregationRule is non-nil"))
	}
	for i := range r.AggregationRule.ClusterRoleSelectors {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, selector(&r.AggregationRule.ClusterRoleSelectors[i], at.Index(i))...)
	}
	return errs
}

func validateBinding(ref rbacv1.RoleRef, subjects []rbacv1.Subject, namespaced bool) field.ErrorList {
	at := field.NewPath("roleRef")
	errs := oneOf(at.Child("apiGroup"), ref.APIGroup, rbacGroup)
	kinds := []string{"ClusterRole"}
	if namespaced {
		kinds = []string{"Role", "ClusterRole"}
	}
	errs = append(errs, oneOf(at.Child("kind"), ref.Kind, kinds...)...)
	if ref.Name == "" {
		errs = append(errs, field.Required(at.Child("name"), ""))
	} else {
		errs = append(errs, invalid(at.Child("name"), ref.Name, segmentName(ref.Name, false))...)
	}
	for i, s := range subjects {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, validateSubject(s, namespaced, field.NewPath("subjects").Index(i))...)
	}
	return errs
}

func validateSubject(s rbacv1.Subject, namespaced bool, path *field.Path) field.ErrorList {
	errs := required(path.Child("name"), s.Name)
	switch s.Kind {
	case rbacv1.ServiceAccountKind:
		if s.Name != "" {
			errs = append(errs, invalid(path.Child("name"), s.Name, naming.NameIsDNSSubdomain(s.Name, false))...)
		}
		if s.APIGroup != "" {
			errs = append(errs, field.NotSupported(path.Child("apiGroup"), s.APIGroup, []string{""}))
		}
		if !namespaced && s.Namespace == "" {
			errs = append(errs, field.Required(path.Child("namespace"), ""))
		}
	case rbacv1.UserKind, rbacv1.GroupKind:
		if s.APIGroup != rbacGroup {
			errs = append(errs, field.NotSupported(path.Child("apiGroup"), s.APIGroup, []string{rbacGroup}))
		}
	default:
		errs = append(errs, field.NotSupported(path.Child("kind"), s.Kind, []string{rbacv1.ServiceAccountKind, rbacv1.UserKind, rbacv1.GroupKind}))
	}
	return errs
}

// sameRole keeps a binding bound: whoever may edit its subjects may not thereby hand out
// another role.
func sameRole(ref, old rbacv1.RoleRef) field.ErrorList {
	if ref == old {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("roleRef"), ref, "cannot change roleRef")}
}

// createdColumn and createdCell: roles show when they were made, not their age.
var createdColumn = column("Created At", "date", metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"])

func createdCell(t metav1.Time) string { return t.UTC().Format("2006-01-02T15:04:05Z") }

func bindingColumns(kind, ofRole string) []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{
		nameColumn,
		column("Role", "string", ofRole),
		ageColumn,
		wide("Users", "string", "Users in the "+kind),
		wide("Groups", "string", "Groups in the "+kind),
		wide("ServiceAccounts", "string", "ServiceAccounts in the "+kind),
	}
}

func bindingCells(name string, created metav1.Time, ref rbacv1.RoleRef, subjects []rbacv1.Subject) []any {
	var users, groups, accounts []string
	for _, s := range subjects {
		switch s.Kind {
		case rbacv1.ServiceAccountKind:
			accounts = append(accounts, s.Namespace+"/"+s.Name)
		case rbacv1.UserKind:
			users = append(users, s.Name)
		case rbacv1.GroupKind:
			groups = append(groups, s.Name)
		}
	}
	join := func(list []string) string { return strings.Join(slices.Clip(list), ", ") }
	return []any{name, ref.Kind + "/" + ref.Name, age(created), join(users), join(groups), join(accounts)}
}
