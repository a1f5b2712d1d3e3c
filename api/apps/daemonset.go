package apps

import (
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/defaults"
	"github.com/coxswain-dev/coxswain/api/kit/table"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/podspec"
)

func daemonSets() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Group: "apps", Version: "v1", Kind: "DaemonSet", Plural: "daemonsets", Namespaced: true,
			ShortNames: []string{"ds"},
			Categories: []string{"all"},
		},
		Storage: api.Storage{
			New:     func() api.Object { return &appsv1.DaemonSet{} },
			NewList: func() runtime.Object { return &appsv1.DaemonSetList{} },
		},
		Strategy: api.Strategy{
			Default:        api.Typed(defaultDaemonSet),
			PrepareCreate:  api.Typed(prepareDaemonSet),
			PrepareUpdate:  api.Typed2(prepareDaemonSetUpdate),
			Validate:       api.Check(validateDaemonSet),
			ValidateUpdate: api.CheckUpdate(validateDaemonSetUpdate),
			Status: api.StatusOf(
				func(d *appsv1.DaemonSet) *appsv1.DaemonSetStatus { return &d.Status },
				(*appsv1.DaemonSetStatus).DeepCopy,
			).WithMetadata(api.AllMetadata).CheckedBy(api.CheckUpdate(validateDaemonSetStatus)),
			Generation: true,
			Warnings: api.Warn(func(d, old *appsv1.DaemonSet) []string {
				return podspec.WarnChangedTemplate(d, old, &d.Spec.Template)
			}),
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name,
				table.Column("Desired", "integer", appsv1.DaemonSetStatus{}.SwaggerDoc()["desiredNumberScheduled"]),
				table.Column("Current", "integer", appsv1.DaemonSetStatus{}.SwaggerDoc()["currentNumberScheduled"]),
				table.Column("Ready", "integer", appsv1.DaemonSetStatus{}.SwaggerDoc()["numberReady"]),
				table.Column("Up-to-date", "integer", appsv1.DaemonSetStatus{}.SwaggerDoc()["updatedNumberScheduled"]),
				table.Column("Available", "integer", appsv1.DaemonSetStatus{}.SwaggerDoc()["numberAvailable"]),
				table.Column("Node Selector", "string",
					"NodeSelector is a selector which must be true for the pod to fit on a node."),
				table.Age, table.Containers, table.Images,
				table.Wide("Selector", "string", appsv1.DaemonSetSpec{}.SwaggerDoc()["selector"]),
			},
			Cells: api.Row(func(d *appsv1.DaemonSet) []any {
				names, images := table.ContainersOf(d.Spec.Template.Spec.Containers)
				return []any{
					d.Name, int64(d.Status.DesiredNumberScheduled), int64(d.Status.CurrentNumberScheduled),
					int64(d.Status.NumberReady),
					int64(d.Status.UpdatedNumberScheduled), int64(d.Status.NumberAvailable),
					table.LabelsOf(d.Spec.Template.Spec.NodeSelector),
					table.AgeOf(d.CreationTimestamp), names, images, metav1.FormatLabelSelector(d.Spec.Selector),
				}
			}),
		},
	}
}

func defaultDaemonSet(d *appsv1.DaemonSet) {
	s := &d.Spec.UpdateStrategy
	defaults.Set(&s.Type, appsv1.RollingUpdateDaemonSetStrategyType)
	if s.Type == appsv1.RollingUpdateDaemonSetStrategyType {
		defaults.SetPtr(&s.RollingUpdate, appsv1.RollingUpdateDaemonSet{})
		defaults.SetPtr(&s.RollingUpdate.MaxUnavailable, intstr.FromInt32(1))
		defaults.SetPtr(&s.RollingUpdate.MaxSurge, intstr.FromInt32(0))
	}
	defaults.SetPtr(&d.Spec.RevisionHistoryLimit, 10)
	podspec.Default(&d.Spec.Template.Spec)
	if _, ok := d.Annotations[appsv1.DeprecatedTemplateGeneration]; !ok {
		setTemplateGeneration(d, 0)
	}
}

// Before apps/v1, the generation of a DaemonSet's template was a field. Since then it is an annotation.

func templateGeneration(d *appsv1.DaemonSet) int64 {
	n, _ := strconv.ParseInt(d.Annotations[appsv1.DeprecatedTemplateGeneration], 10, 64)
	return n
}

func setTemplateGeneration(d *appsv1.DaemonSet, n int64) {
	if d.Annotations == nil {
		d.Annotations = make(map[string]string, 1)
	}
	d.Annotations[appsv1.DeprecatedTemplateGeneration] = strconv.FormatInt(n, 10)
}

func prepareDaemonSet(d *appsv1.DaemonSet) { setTemplateGeneration(d, max(templateGeneration(d), 1)) }

func prepareDaemonSetUpdate(d, old *appsv1.DaemonSet) {
	n := templateGeneration(old)
	if !equality.Semantic.DeepEqual(d.Spec.Template, old.Spec.Template) {
		n++
	}
	setTemplateGeneration(d, n)
}

func validateDaemonSet(d *appsv1.DaemonSet) field.ErrorList {
	path, spec := field.NewPath("spec"), &d.Spec
	errs := validate.Selector(spec.Selector, path.Child("selector"))
	if parsed, err := metav1.LabelSelectorAsSelector(spec.Selector); err == nil {
		errs = append(errs, podspec.ValidateSelectsTemplate(parsed, spec.Template.Labels, path)...)
	}
	if s := spec.Selector; s != nil && len(s.MatchLabels)+len(s.MatchExpressions) == 0 {
		errs = append(errs, field.Invalid(path.Child("selector"), s, "empty selector is invalid for daemonset"))
	}
	errs = append(errs, podspec.ValidateTemplate(&spec.Template, path.Child("template"))...)
	errs = append(errs, podspec.ValidateRunsForEver("DaemonSet", &spec.Template.Spec,
		path.Child("template", "spec"))...)
	errs = append(errs, validate.NonNegative(path.Child("minReadySeconds"), spec.MinReadySeconds)...)
	errs = append(errs, validate.NonNegativePtr(path.Child("revisionHistoryLimit"), spec.RevisionHistoryLimit)...)
	fldPath := path.Child("updateStrategy")
	switch spec.UpdateStrategy.Type {
	case appsv1.OnDeleteDaemonSetStrategyType:
	case appsv1.RollingUpdateDaemonSetStrategyType:
		r := spec.UpdateStrategy.RollingUpdate
		if r == nil {
			return append(errs, field.Required(fldPath.Child("rollingUpdate"), ""))
		}
		errs = append(errs, validateDaemonRolling(r, fldPath.Child("rollingUpdate"))...)
	default:
		errs = append(errs, field.NotSupported(fldPath, spec.UpdateStrategy, []appsv1.DaemonSetUpdateStrategyType{
			appsv1.RollingUpdateDaemonSetStrategyType, appsv1.OnDeleteDaemonSetStrategyType}))
	}
	return errs
}

// validateDaemonRolling requires exactly one of the two bounds to be above zero: on each node the new pod either
// replaces the old one or starts beside it.
func validateDaemonRolling(r *appsv1.RollingUpdateDaemonSet, path *field.Path) field.ErrorList {
	u, s := intstr.FromInt32(0), intstr.FromInt32(0)
	if r.MaxUnavailable != nil {
		u = *r.MaxUnavailable
	}
	if r.MaxSurge != nil {
		s = *r.MaxSurge
	}
	errs := validate.CountOrPercent(path.Child("maxUnavailable"), u)
	errs = append(errs, validate.NotOver100Percent(path.Child("maxUnavailable"), u)...)
	errs = append(errs, validate.CountOrPercent(path.Child("maxSurge"), s)...)
	errs = append(errs, validate.NotOver100Percent(path.Child("maxSurge"), s)...)
	switch noUnavailable, noSurge := validate.PercentOrCountIsZero(u), validate.PercentOrCountIsZero(s); {
	case noUnavailable && noSurge:
		errs = append(errs, field.Required(path.Child("maxUnavailable"), "cannot be 0 when maxSurge is 0"))
	case !noUnavailable && !noSurge:
		errs = append(errs, field.Invalid(path.Child("maxSurge"), s, "may not be set when maxUnavailable is non-zero"))
	}
	return errs
}

func validateDaemonSetUpdate(d, old *appsv1.DaemonSet) field.ErrorList {
	return validate.Unchanged(d.Spec.Selector, old.Spec.Selector, field.NewPath("spec", "selector"))
}

func validateDaemonSetStatus(d, old *appsv1.DaemonSet) field.ErrorList {
	path, s := field.NewPath("status"), &d.Status
	errs := validate.Counts(path, []validate.Count{
		{"currentNumberScheduled", s.CurrentNumberScheduled}, {"numberMisscheduled", s.NumberMisscheduled},
		{"desiredNumberScheduled", s.DesiredNumberScheduled}, {"numberReady", s.NumberReady},
		{"updatedNumberScheduled", s.UpdatedNumberScheduled}, {"numberAvailable", s.NumberAvailable},
		{"numberUnavailable", s.NumberUnavailable},
	})
	errs = append(errs, validate.NonNegative(path.Child("observedGeneration"), s.ObservedGeneration)...)
	return append(errs, collisionCount(path.Child("collisionCount"), s.CollisionCount, old.Status.CollisionCount)...)
}
