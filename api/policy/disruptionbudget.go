package policy

import (
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/table"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
)

func podDisruptionBudgets() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Group: "policy", Version: "v1", Kind: "PodDisruptionBudget", Plural: "poddisruptionbudgets",
			Namespaced: true,
			ShortNames: []string{"pdb"},
		},
		Storage: api.Storage{
			New:     func() api.Object { return &policyv1.PodDisruptionBudget{} },
			NewList: func() runtime.Object { return &policyv1.PodDisruptionBudgetList{} },
		},
		Strategy: api.Strategy{
			Conditional:     true,
			GenericMetadata: true,
			ValidateName:    validate.SegmentName,
			Validate:        api.Check(validateDisruptionBudget),
			Status: api.StatusOf(
				func(b *policyv1.PodDisruptionBudget) *policyv1.PodDisruptionBudgetStatus { return &b.Status },
				(*policyv1.PodDisruptionBudgetStatus).DeepCopy,
			).WithMetadata(api.AllMetadata).CheckedBy(api.CheckUpdate(validateDisruptionStatus)),
			Generation: true,
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name,
				table.Column("Min Available", "string", "The minimum number of pods that must be available."),
				table.Column("Max Unavailable", "string", "The maximum number of pods that may be unavailable."),
				table.Column("Allowed Disruptions", "integer",
					"Calculated number of pods that may be disrupted at this time."),
				table.Age,
			},
			Cells: api.Row(func(b *policyv1.PodDisruptionBudget) []any {
				return []any{b.Name, boundCell(b.Spec.MinAvailable), boundCell(b.Spec.MaxUnavailable),
					int64(b.Status.DisruptionsAllowed), table.AgeOf(b.CreationTimestamp)}
			}),
		},
	}
}

func boundCell(v *intstr.IntOrString) string {
	if v == nil {
		return "N/A"
	}
	return v.String()
}

func validateDisruptionBudget(b *policyv1.PodDisruptionBudget) field.ErrorList {
	path, spec := field.NewPath("spec"), &b.Spec
	var errs field.ErrorList
	if spec.MinAvailable != nil && spec.MaxUnavailable != nil {
		errs = append(errs, field.Invalid(path, spec, "minAvailable and maxUnavailable cannot be both set"))
	}
	if v := spec.MinAvailable; v != nil {
		errs = append(errs, validate.CountOrPercent(path.Child("minAvailable"), *v)...)
		errs = append(errs, validate.NotOver100Percent(path.Child("minAvailable"), *v)...)
	}
	if v := spec.MaxUnavailable; v != nil {
		errs = append(errs, validate.CountOrPercent(path.Child("maxUnavailable"), *v)...)
		errs = append(errs, validate.NotOver100Percent(path.Child("maxUnavailable"), *v)...)
	}
	errs = append(errs, validate.Selector(spec.Selector, path.Child("selector"))...)
	if p := spec.UnhealthyPodEvictionPolicy; p != nil {
		errs = append(errs, validate.OneOf(path.Child("unhealthyPodEvictionPolicy"), *p, policyv1.AlwaysAllow,
			policyv1.IfHealthyBudget)...)
	}
	return errs
}

func validateDisruptionStatus(b, _ *policyv1.PodDisruptionBudget) field.ErrorList {
	path, s := field.NewPath("status"), &b.Status
	errs := validate.Counts(path, []validate.Count{
		{"disruptionsAllowed", s.DisruptionsAllowed}, {"currentHealthy", s.CurrentHealthy},
		{"desiredHealthy", s.DesiredHealthy}, {"expectedPods", s.ExpectedPods},
	})
	return append(errs, metav1validation.ValidateConditions(s.Conditions, path.Child("conditions").Plain())...)
}
