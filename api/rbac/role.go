package rbac

import (
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/defaults"
	"github.com/coxswain-dev/coxswain/api/kit/table"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/naming"
)

const rbacGroup = rbacv1.GroupName

func roles() *api.Resource {
	return &api.Resource{
		Names: api.Names{Group: rbacGroup, Version: "v1", Kind: "Role", Plural: "roles", Namespaced: true},
		Storage: api.Storage{
			ReadYourWrites: true,
			New:            func() api.Object { return &rbacv1.Role{} },
			NewList:        func() runtime.Object { return &rbacv1.RoleList{} },
		},
		Strategy: api.Strategy{
			CreateOnUpdate: true,
			Grants:         api.Granting(func(r, _ *rbacv1.Role) api.Grant { return api.Grant{Rules: r.Rules} }),
			ValidateName:   validate.SegmentName,
			Validate: api.Check(func(r *rbacv1.Role) field.ErrorList {
				return validateRules(r.Rules, true, field.NewPath("rules"))
			}),
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{table.Name, table.CreatedAt},
			Cells: api.Row(func(r *rbacv1.Role) []any {
				return []any{r.Name,
					table.CreatedAtOf(r.CreationTimestamp)}
			}),
		},
	}
}

func clusterRoles() *api.Resource {
	return &api.Resource{
		Names: api.Names{Group: rbacGroup, Version: "v1", Kind: "ClusterRole", Plural: "clusterroles"},
		Storage: api.Storage{
			ReadYourWrites: true,
			New:            func() api.Object { return &rbacv1.ClusterRole{} },
			NewList:        func() runtime.Object { return &rbacv1.ClusterRoleList{} },
		},
		Strategy: api.Strategy{
			CreateOnUpdate: true,
			Grants: api.Granting(func(r, old *rbacv1.ClusterRole) api.Grant {
				return api.Grant{Rules: r.Rules, Aggregated: aggregates(r) || aggregates(old)}
			}),
			ValidateName: validate.SegmentName,
			Validate:     api.Check(validateClusterRole),
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{table.Name, table.CreatedAt},
			Cells: api.Row(func(r *rbacv1.ClusterRole) []any {
				return []any{r.Name, table.CreatedAtOf(r.CreationTimestamp)}
			}),
		},
	}
}

func roleBindings() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Group: rbacGroup, Version: "v1", Kind: "RoleBinding", Plural: "rolebindings", Namespaced: true,
		},
		Storage: api.Storage{
			ReadYourWrites: true,
			New:            func() api.Object { return &rbacv1.RoleBinding{} },
			NewList:        func() runtime.Object { return &rbacv1.RoleBindingList{} },
		},
		Strategy: api.Strategy{
			CreateOnUpdate: true,
			Grants: api.Granting(func(b,
				_ *rbacv1.RoleBinding) api.Grant {
				return api.Grant{Role: &b.RoleRef}
			}),
			Default:      api.Typed(func(b *rbacv1.RoleBinding) { defaultBinding(&b.RoleRef, b.Subjects) }),
			ValidateName: validate.SegmentName,
			Validate: api.Check(func(b *rbacv1.RoleBinding) field.ErrorList {
				return validateBinding(b.RoleRef, b.Subjects, true)
			}),
			ValidateUpdate: api.CheckUpdate(func(b, old *rbacv1.RoleBinding) field.ErrorList {
				return sameRole(b.RoleRef, old.RoleRef)
			}),
		},
		Table: api.Table{
			Columns: bindingColumns("roleBinding", rbacv1.RoleBinding{}.SwaggerDoc()["roleRef"]),
			Cells: api.Row(func(b *rbacv1.RoleBinding) []any {
				return bindingCells(b.Name, b.CreationTimestamp, b.RoleRef, b.Subjects)
			}),
		},
	}
}

func clusterRoleBindings() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Group: rbacGroup, Version: "v1", Kind: "ClusterRoleBinding", Plural: "clusterrolebindings",
		},
		Storage: api.Storage{
			ReadYourWrites: true,
			New:            func() api.Object { return &rbacv1.ClusterRoleBinding{} },
			NewList:        func() runtime.Object { return &rbacv1.ClusterRoleBindingList{} },
		},
		Strategy: api.Strategy{
			CreateOnUpdate: true,
			Grants: api.Granting(func(b, _ *rbacv1.ClusterRoleBinding) api.Grant {
				return api.Grant{Role: &b.RoleRef}
			}),
			Default:      api.Typed(func(b *rbacv1.ClusterRoleBinding) { defaultBinding(&b.RoleRef, b.Subjects) }),
			ValidateName: validate.SegmentName,
			Validate: api.Check(func(b *rbacv1.ClusterRoleBinding) field.ErrorList {
				return validateBinding(b.RoleRef, b.Subjects, false)
			}),
			ValidateUpdate: api.CheckUpdate(func(b, old *rbacv1.ClusterRoleBinding) field.ErrorList {
				return sameRole(b.RoleRef, old.RoleRef)
			}),
		},
		Table: api.Table{
			Columns: bindingColumns("clusterRoleBinding", rbacv1.ClusterRoleBinding{}.SwaggerDoc()["roleRef"]),
			Cells: api.Row(func(b *rbacv1.ClusterRoleBinding) []any {
				return bindingCells(b.Name, b.CreationTimestamp, b.RoleRef, b.Subjects)
			}),
		},
	}
}

// aggregates reports whether the rules of a role, which may be nil, are aggregated from other roles.
func aggregates(role *rbacv1.ClusterRole) bool {
	return role != nil && role.AggregationRule != nil
}

func defaultBinding(ref *rbacv1.RoleRef, subjects []rbacv1.Subject) {
	defaults.Set(&ref.APIGroup, rbacGroup)
	for i := range subjects {
		if kind := subjects[i].Kind; kind == rbacv1.UserKind || kind == rbacv1.GroupKind {
			defaults.Set(&subjects[i].APIGroup, rbacGroup)
		}
	}
}

func validateRules(rules []rbacv1.PolicyRule, namespaced bool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range rules {
		if field.Enough(errs) {
			break
		}
		r, idxPath := &rules[i], path.Index(i)
		if len(r.Verbs) == 0 {
			errs = append(errs, field.Required(idxPath.Child("verbs"), "verbs must contain at least one value"))
		}
		if len(r.NonResourceURLs) > 0 {
			if namespaced {
				errs = append(errs, field.Invalid(idxPath.Child("nonResourceURLs"), r.NonResourceURLs,
					"namespaced rules cannot apply to non-resource URLs"))
			}
			if len(r.APIGroups)+len(r.Resources)+len(r.ResourceNames) > 0 {
				errs = append(errs, field.Invalid(idxPath.Child("nonResourceURLs"), r.NonResourceURLs,
					"rules cannot apply to both regular resources and non-resource URLs"))
			}
			continue
		}
		if len(r.APIGroups) == 0 {
			errs = append(errs,
				field.Required(idxPath.Child("apiGroups"), "resource rules must supply at least one api group"))
		}
		if len(r.Resources) == 0 {
			errs = append(errs,
				field.Required(idxPath.Child("resources"), "resource rules must supply at least one resource"))
		}
	}
	return errs
}

func validateClusterRole(r *rbacv1.ClusterRole) field.ErrorList {
	errs := validateRules(r.Rules, false, field.NewPath("rules"))
	if r.AggregationRule == nil {
		return errs
	}
	fldPath := field.NewPath("aggregationRule", "clusterRoleSelectors")
	if len(r.AggregationRule.ClusterRoleSelectors) == 0 {
		errs = append(errs,
			field.Required(fldPath, "at least one clusterRoleSelector required if aggregationRule is non-nil"))
	}
	for i := range r.AggregationRule.ClusterRoleSelectors {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, validate.Selector(&r.AggregationRule.ClusterRoleSelectors[i], fldPath.Index(i))...)
	}
	return errs
}

func validateBinding(ref rbacv1.RoleRef, subjects []rbacv1.Subject, namespaced bool) field.ErrorList {
	roleRefPath := field.NewPath("roleRef")
	errs := validate.OneOf(roleRefPath.Child("apiGroup"), ref.APIGroup, rbacGroup)
	kinds := []string{"ClusterRole"}
	if namespaced {
		kinds = []string{"Role", "ClusterRole"}
	}
	errs = append(errs, validate.OneOf(roleRefPath.Child("kind"), ref.Kind, kinds...)...)
	if ref.Name == "" {
		errs = append(errs, field.Required(roleRefPath.Child("name"), ""))
	} else {
		errs = append(errs,
			validate.Complaints(roleRefPath.Child("name"), ref.Name, validate.SegmentName(ref.Name, false))...)
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
	errs := validate.Required(path.Child("name"), s.Name)
	switch s.Kind {
	case rbacv1.ServiceAccountKind:
		if s.Name != "" {
			errs = append(errs, validate.Complaints(path.Child("name"), s.Name,
				naming.NameIsDNSSubdomain(s.Name, false))...)
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
		errs = append(errs, field.NotSupported(path.Child("kind"), s.Kind,
			[]string{rbacv1.ServiceAccountKind, rbacv1.UserKind, rbacv1.GroupKind}))
	}
	return errs
}

// sameRole rejects a change of a binding's role: the permission to edit its subjects does not include granting another
// role.
func sameRole(ref, old rbacv1.RoleRef) field.ErrorList {
	if ref == old {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("roleRef"), ref, "cannot change roleRef")}
}

func bindingColumns(kind, ofRole string) []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{
		table.Name,
		table.Column("Role", "string", ofRole),
		table.Age,
		table.Wide("Users", "string", "Users in the "+kind),
		table.Wide("Groups", "string", "Groups in the "+kind),
		table.Wide("ServiceAccounts", "string", "ServiceAccounts in the "+kind),
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
	return []any{name, ref.Kind + "/" + ref.Name, table.AgeOf(created), join(users), join(groups), join(accounts)}
}
