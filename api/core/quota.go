package core

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/resourcelist"
	"github.com/coxswain-dev/coxswain/api/kit/table"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
)

func resourceQuotas() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Version: "v1", Kind: "ResourceQuota", Plural: "resourcequotas", Namespaced: true,
			ShortNames: []string{"quota"},
		},
		Storage: api.Storage{
			New:     func() api.Object { return &corev1.ResourceQuota{} },
			NewList: func() runtime.Object { return &corev1.ResourceQuotaList{} },
		},
		Strategy: api.Strategy{
			ReturnDeleted: true,
			Default: api.Typed(func(q *corev1.ResourceQuota) {
				resourcelist.Round(q.Spec.Hard)
				resourcelist.Round(q.Status.Hard)
				resourcelist.Round(q.Status.Used)
			}),
			Validate: api.Check(validateResourceQuota),
			ValidateUpdate: api.CheckUpdate(func(q, old *corev1.ResourceQuota) field.ErrorList {
				return validate.Unchanged(scopeSet(q.Spec.Scopes), scopeSet(old.Spec.Scopes),
					field.NewPath("spec", "scopes"))
			}),
			Status: api.StatusOf(
				func(q *corev1.ResourceQuota) *corev1.ResourceQuotaStatus { return &q.Status },
				(*corev1.ResourceQuotaStatus).DeepCopy,
			).WithMetadata(api.AllMetadata).CheckedBy(api.CheckUpdate(func(q, _ *corev1.ResourceQuota) field.ErrorList {
				path := field.NewPath("status")
				return append(quantities(q.Status.Hard, path.Child("hard")),
					quantities(q.Status.Used, path.Child("used"))...)
			})),
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name,
				table.Column("Request", "string",
					"Request represents a minimum amount of cpu/memory that a container may consume."),
				table.Column("Limit", "string",
					"Limits control the maximum amount of cpu/memory that a container may use "+
						"independent of contention on the node."),
				table.Age,
			},
			Cells: api.Row(func(q *corev1.ResourceQuota) []any {
				var requests, limits []string
				for name, hard := range q.Status.Hard {
					used := q.Status.Used[name]
					cell := fmt.Sprintf("%s: %s/%s", name, used.String(), hard.String())
					if strings.HasPrefix(string(name), "limits") {
						limits = append(limits, cell)
					} else {
						requests = append(requests, cell)
					}
				}
				slices.Sort(requests)
				slices.Sort(limits)
				return []any{q.Name, strings.Join(requests, ", "), strings.Join(limits, ", "),
					table.AgeOf(q.CreationTimestamp)}
			}),
		},
	}
}

// scopeSet returns a copy of the scopes in a fixed order. The original order has no meaning.
func scopeSet(scopes []corev1.ResourceQuotaScope) []corev1.ResourceQuotaScope {
	sorted := slices.Clone(scopes)
	slices.Sort(sorted)
	return sorted
}

// quantities checks the names and amounts of a quota's resources.
func quantities(list corev1.ResourceList, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, name := range resourcelist.SortedNames(list) {
		if field.Enough(errs) {
			break
		}
		keyPath := path.Key(string(name))
		errs = append(errs, resourcelist.ValidateQuotaName(name, keyPath)...)
		errs = append(errs, resourcelist.ValidateQuantity(name, list[name], keyPath)...)
	}
	return errs
}

// The resources that scopes can apply to: pod counts, compute resources of pods, or claims.
var (
	podCounts  = []corev1.ResourceName{corev1.ResourcePods}
	podAmounts = []corev1.ResourceName{corev1.ResourcePods, corev1.ResourceCPU, corev1.ResourceMemory,
		corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory, corev1.ResourceRequestsCPU,
		corev1.ResourceRequestsMemory}
	claimedAmount = []corev1.ResourceName{corev1.ResourcePersistentVolumeClaims, corev1.ResourceRequestsStorage}
)

// quotaScopes maps each scope to the resources that it applies to. existsOnly means that a selector may only test
// whether the scope exists.
var quotaScopes = map[corev1.ResourceQuotaScope]struct {
	on         []corev1.ResourceName
	existsOnly bool
}{
	corev1.ResourceQuotaScopeBestEffort:                {podCounts, true},
	corev1.ResourceQuotaScopeNotBestEffort:             {podAmounts, true},
	corev1.ResourceQuotaScopeTerminating:               {podAmounts, true},
	corev1.ResourceQuotaScopeNotTerminating:            {podAmounts, true},
	corev1.ResourceQuotaScopeCrossNamespacePodAffinity: {podAmounts, true},
	corev1.ResourceQuotaScopePriorityClass:             {podAmounts, false},
	corev1.ResourceQuotaScopeVolumeAttributesClass:     {claimedAmount, false},
}

// misplaced counts the standard resources of a quota that a scope does not apply to.
func misplaced(scope corev1.ResourceQuotaScope, hard corev1.ResourceList) int {
	n, resources := 0, quotaScopes[scope].on
	for name := range hard {
		if resources != nil && resourcelist.IsStandardInQuota(name) && !slices.Contains(resources, name) {
			n++
		}
	}
	return n
}

func conflicting(scopes []corev1.ResourceQuotaScope) bool {
	has := func(s corev1.ResourceQuotaScope) bool { return slices.Contains(scopes, s) }
	return (has(corev1.ResourceQuotaScopeBestEffort) && has(corev1.ResourceQuotaScopeNotBestEffort)) ||
		(has(corev1.ResourceQuotaScopeTerminating) && has(corev1.ResourceQuotaScopeNotTerminating))
}

func validateResourceQuota(q *corev1.ResourceQuota) field.ErrorList {
	path, spec := field.NewPath("spec"), &q.Spec
	errs := quantities(spec.Hard, path.Child("hard"))
	scopesPath := path.Child("scopes")
	for _, s := range spec.Scopes {
		if field.Enough(errs) {
			break
		}
		if _, ok := quotaScopes[s]; !ok {
			errs = append(errs, field.Invalid(scopesPath, spec.Scopes, "unsupported scope"))
		}
		for range misplaced(s, spec.Hard) {
			if field.Enough(errs) {
				break
			}
			errs = append(errs, field.Invalid(scopesPath, spec.Scopes, "unsupported scope applied to resource"))
		}
	}
	if conflicting(spec.Scopes) {
		errs = append(errs, field.Invalid(scopesPath, spec.Scopes, "conflicting scopes"))
	}
	if spec.ScopeSelector != nil {
		errs = append(errs, validateScopeSelector(spec, path.Child("scopeSelector", "matchExpressions"))...)
	}
	return errs
}

func validateScopeSelector(spec *corev1.ResourceQuotaSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	var scopes []corev1.ResourceQuotaScope
	for _, r := range spec.ScopeSelector.MatchExpressions {
		if field.Enough(errs) {
			break
		}
		scopes = append(scopes, r.ScopeName)
		scope, ok := quotaScopes[r.ScopeName]
		if !ok {
			errs = append(errs, field.Invalid(path.Child("scopeName"), r.ScopeName, "unsupported scope"))
		}
		for range misplaced(r.ScopeName, spec.Hard) {
			if field.Enough(errs) {
				break
			}
			errs = append(errs, field.Invalid(path, spec.ScopeSelector, "unsupported scope applied to resource"))
		}
		if scope.existsOnly && r.Operator != corev1.ScopeSelectorOpExists {
			errs = append(errs, field.Invalid(path.Child("operator"), r.Operator,
				"must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, "+
					"ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort "+
					"or ResourceQuotaScopeCrossNamespacePodAffinity"))
		}
		switch r.Operator {
		case corev1.ScopeSelectorOpIn, corev1.ScopeSelectorOpNotIn:
			if len(r.Values) == 0 {
				errs = append(errs, field.Required(path.Child("values"), "must be at least one value when "+
					"`operator` is 'In' or 'NotIn' for scope selector"))
			}
		case corev1.ScopeSelectorOpExists, corev1.ScopeSelectorOpDoesNotExist:
			if len(r.Values) > 0 {
				errs = append(errs, field.Invalid(path.Child("values"), r.Values, "must be no value when `operator` "+
					"is 'Exist' or 'DoesNotExist' for scope selector"))
			}
		default:
			errs = append(errs, field.Invalid(path.Child("operator"), r.Operator, "not a valid selector operator"))
		}
	}
	if conflicting(scopes) {
		errs = append(errs, field.Invalid(path, spec.Scopes, "conflicting scopes"))
	}
	return errs
}

func limitRanges() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Version: "v1", Kind: "LimitRange", Plural: "limitranges", Namespaced: true,
			ShortNames: []string{"limits"},
		},
		Storage: api.Storage{
			ReadYourWrites: true,
			New:            func() api.Object { return &corev1.LimitRange{} },
			NewList:        func() runtime.Object { return &corev1.LimitRangeList{} },
		},
		Strategy: api.Strategy{
			CreateOnUpdate: true,
			Default:        api.Typed(defaultLimitRange),
			Validate:       api.Check(validateLimitRange),
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{table.Name, table.CreatedAt},
			Cells: api.Row(func(l *corev1.LimitRange) []any {
				return []any{l.Name, table.CreatedAtOf(l.CreationTimestamp)}
			}),
		},
	}
}

// defaultLimitRange sets a container's default limit to the maximum, and its default request to that limit or to the
// minimum.
func defaultLimitRange(l *corev1.LimitRange) {
	for i := range l.Spec.Limits {
		item := &l.Spec.Limits[i]
		for _, list := range []corev1.ResourceList{item.Max, item.Min, item.Default, item.DefaultRequest,
			item.MaxLimitRequestRatio} {
			resourcelist.Round(list)
		}
		if item.Type != corev1.LimitTypeContainer {
			continue
		}
		fillResources(&item.Default, item.Max)
		fillResources(&item.DefaultRequest, item.Default)
		fillResources(&item.DefaultRequest, item.Min)
	}
}

// fillResources adds the resources that only the other list has.
func fillResources(list *corev1.ResourceList, other corev1.ResourceList) {
	if *list == nil {
		*list = corev1.ResourceList{}
	}
	for name, q := range other {
		if _, ok := (*list)[name]; !ok {
			(*list)[name] = q.DeepCopy()
		}
	}
}
