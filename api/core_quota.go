package api

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func resourceQuotas() *Resource {
	return &Resource{
		Version: "v1", Kind: "ResourceQuota", Plural: "resourcequotas", Namespaced: true,
		ShortNames: []string{"quota"},
		New:        func() Object { return &corev1.ResourceQuota{} },
		NewList:    func() runtime.Object { return &corev1.ResourceQuotaList{} },

		Default: with(func(q *corev1.ResourceQuota) {
			roundResources(q.Spec.Hard)
			roundResources(q.Status.Hard)
			roundResources(q.Status.Used)
		}),
		Validate: checked(validateResourceQuota),
		ValidateUpdate: checked2(func(q, old *corev1.ResourceQuota) field.ErrorList {
			return unchanged(scopeSet(q.Spec.Scopes), scopeSet(old.Spec.Scopes), field.NewPath("spec", "scopes"))
		}),
		Status: statusOf(
			func(q *corev1.ResourceQuota) *corev1.ResourceQuotaStatus { return &q.Status },
			(*corev1.ResourceQuotaStatus).DeepCopy,
		).checkedBy(checked2(func(q, _ *corev1.ResourceQuota) field.ErrorList {
			path := field.NewPath("status")
			return append(quantities(q.Status.Hard, path.Child("hard")), quantities(q.Status.Used, path.Child("used"))...)
		})),

		Columns: []metav1.TableColumnDefinition{
			nameColumn,
			column("Request", "string", "Request represents a minimum amount of cpu/memory that a container may consume."),
			column("Limit", "string", "Limits control the maximum amount of cpu/memory that a container may use independent of contention on the node."),
			ageColumn,
		},
		Cells: row(func(q *corev1.ResourceQuota) []any {
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
			return []any{q.Name, strings.Join(requests, ", "), strings.Join(limits, ", "), age(q.CreationTimestamp)}
		}),
	}
}

// scopeSet is the scopes in one order, as their order means nothing.
func scopeSet(scopes []corev1.ResourceQuotaScope) []corev1.ResourceQuotaScope {
	sorted := slices.Clone(scopes)
	slices.Sort(sorted)
	return sorted
}

// quantities checks the names and signs of a list of amounts.
func quantities(list corev1.ResourceList, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for name, q := range list {
		errs = append(errs, invalid(path.Key(string(name)), name, utilvalidation.IsQualifiedName(string(name)))...)
		errs = append(errs, validateQuantity(name, q, path.Key(string(name)))...)
	}
	return errs
}

var quotaScopes = []corev1.ResourceQuotaScope{
	corev1.ResourceQuotaScopeBestEffort, corev1.ResourceQuotaScopeCrossNamespacePodAffinity, corev1.ResourceQuotaScopeNotBestEffort,
	corev1.ResourceQuotaScopeNotTerminating, corev1.ResourceQuotaScopePriorityClass, corev1.ResourceQuotaScopeTerminating,
	corev1.ResourceQuotaScopeVolumeAttributesClass,
}

func validateResourceQuota(q *corev1.ResourceQuota) field.ErrorList {
	path := field.NewPath("spec")
	errs := quantities(q.Spec.Hard, path.Child("hard"))
	has := func(s corev1.ResourceQuotaScope) bool { return slices.Contains(q.Spec.Scopes, s) }
	for _, s := range q.Spec.Scopes {
		if !slices.Contains(quotaScopes, s) {
			errs = append(errs, field.Invalid(path.Child("scopes"), q.Spec.Scopes, "unsupported scope"))
		}
	}
	if (has(corev1.ResourceQuotaScopeBestEffort) && has(corev1.ResourceQuotaScopeNotBestEffort)) ||
		(has(corev1.ResourceQuotaScopeTerminating) && has(corev1.ResourceQuotaScopeNotTerminating)) {
		errs = append(errs, field.Invalid(path.Child("scopes"), q.Spec.Scopes, "conflicting scopes"))
	}
	if q.Spec.ScopeSelector == nil {
		return errs
	}
	for _, r := range q.Spec.ScopeSelector.MatchExpressions {
		at := path.Child("scopeSelector", "matchExpressions")
		if !slices.Contains(quotaScopes, r.ScopeName) {
			errs = append(errs, field.Invalid(at.Child("scopeName"), r.ScopeName, "unsupported scope"))
		}
		switch r.Operator {
		case corev1.ScopeSelectorOpIn, corev1.ScopeSelectorOpNotIn:
			if len(r.Values) == 0 {
				errs = append(errs, field.Required(at.Child("values"), "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"))
			}
		case corev1.ScopeSelectorOpExists, corev1.ScopeSelectorOpDoesNotExist:
			if len(r.Values) > 0 {
				errs = append(errs, field.Invalid(at.Child("values"), r.Values, "must be no value when `operator` is 'Exists' or 'DoesNotExist' for scope selector"))
			}
		default:
			errs = append(errs, field.Invalid(at.Child("operator"), r.Operator, "not a valid selector operator"))
		}
	}
	return errs
}

func limitRanges() *Resource {
	return &Resource{
		Version: "v1", Kind: "LimitRange", Plural: "limitranges", Namespaced: true,
		ShortNames:     []string{"limits"},
		New:            func() Object { return &corev1.LimitRange{} },
		NewList:        func() runtime.Object { return &corev1.LimitRangeList{} },
		CreateOnUpdate: true,

		Default:  with(defaultLimitRange),
		Validate: checked(validateLimitRange),

		Columns: []metav1.TableColumnDefinition{nameColumn, createdColumn},
		Cells:   row(func(l *corev1.LimitRange) []any { return []any{l.Name, createdCell(l.CreationTimestamp)} }),
	}
}

// defaultLimitRange derives a container's default limit from the maximum and its default
// request from that limit or the minimum.
func defaultLimitRange(l *corev1.LimitRange) {
	for i := range l.Spec.Limits {
		item := &l.Spec.Limits[i]
		for _, list := range []corev1.ResourceList{item.Max, item.Min, item.Default, item.DefaultRequest, item.MaxLimitRequestRatio} {
			roundResources(list)
		}
		if item.Type != corev1.LimitTypeContainer {
			continue
		}
		fillResources(&item.Default, item.Max)
		fillResources(&item.DefaultRequest, item.Default)
		fillResources(&item.DefaultRequest, item.Min)
	}
}

// fillResources adds to a list what only the other one has.
func fillResources(list *corev1.ResourceList, from corev1.ResourceList) {
	if *list == nil {
		*list = corev1.ResourceList{}
	}
	for name, q := range from {
		if _, ok := (*list)[name]; !ok {
			(*list)[name] = q.DeepCopy()
		}
	}
}

func validateLimitRange(l *corev1.LimitRange) field.ErrorList {
	var errs field.ErrorList
	types := map[corev1.LimitType]bool{}
	for i := range l.Spec.Limits {
		item, at := &l.Spec.Limits[i], field.NewPath("spec", "limits").Index(i)
		if item.Type == "" {
			errs = append(errs, field.Required(at.Child("type"), ""))
		}
		if types[item.Type] {
			errs = append(errs, field.Duplicate(at.Child("type"), item.Type))
		}
		types[item.Type] = true
		if item.Type == corev1.LimitTypePod {
			for name, list := range map[string]corev1.ResourceList{"default": item.Default, "defaultRequest": item.DefaultRequest} {
				if len(list) > 0 {
					errs = append(errs, field.Forbidden(at.Child(name), "may not be specified when `type` is 'Pod'"))
				}
			}
		}
		if item.Type == corev1.LimitTypePersistentVolumeClaim {
			_, least := item.Min[corev1.ResourceStorage]
			_, most := item.Max[corev1.ResourceStorage]
			if !least && !most {
				errs = append(errs, field.Required(at.Child("limits"), "either minimum or maximum storage value is required, but neither was provided"))
			}
		}
		errs = append(errs, validateLimitBounds(item, at)...)
	}
	return errs
}

// validateLimitBounds wants minimum ≤ default request ≤ default ≤ maximum.
func validateLimitBounds(item *corev1.LimitRangeItem, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	order := []struct {
		name string
		list corev1.ResourceList
	}{{"min", item.Min}, {"defaultRequest", item.DefaultRequest}, {"default", item.Default}, {"max", item.Max}}
	for low := range order {
		errs = append(errs, quantities(order[low].list, path.Child(order[low].name))...)
		for high := low + 1; high < len(order); high++ {
			for name, q := range order[low].list {
				if bound, ok := order[high].list[name]; ok && q.Cmp(bound) > 0 {
					errs = append(errs, field.Invalid(path.Child(order[low].name).Key(string(name)), q.String(),
						fmt.Sprintf("%s value %s is greater than %s value %s", order[low].name, q.String(), order[high].name, bound.String())))
				}
			}
		}
	}
	for name, ratio := range item.MaxLimitRequestRatio {
		if ratio.Cmp(resource.MustParse("1")) < 0 {
			errs = append(errs, field.Invalid(path.Child("maxLimitRequestRatio").Key(string(name)), ratio.String(), fmt.Sprintf("ratio %s is less than 1", ratio.String())))
		}
	}
	return errs
}
