package api

import (
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/coxswain-dev/coxswain/api/field"
)

func daemonSets() *Resource {
	return &Resource{
		Group: "apps", Version: "v1", Kind: "DaemonSet", Plural: "daemonsets", Namespaced: true,
		ShortNames: []string{"ds"},
		Categories: []string{"all"},
		New:        func() Object { return &appsv1.DaemonSet{} },
		NewList:    func() runtime.Object { return &appsv1.DaemonSetList{} },

		Default:        with(defaultDaemonSet),
		PrepareCreate:  with(prepareDaemonSet),
		PrepareUpdate:  with2(prepareDaemonSetUpdate),
		Validate:       checked(validateDaemonSet),
		ValidateUpdate: checked2(validateDaemonSetUpdate),
		Status: statusOf(
			func(d *appsv1.DaemonSet) *appsv1.DaemonSetStatus { return &d.Status },
			(*appsv1.DaemonSetStatus).DeepCopy,
		).withMetadata(AllMetadata).checkedBy(checked2(validateDaemonSetStatus)),
		Generation: true,
		Warnings: warned2(func(d, old *appsv1.DaemonSet) []string {
			return warnTemplate(d, old, &d.Spec.Template)
		}),

		Columns: []metav1.TableColumnDefinition{
			nameColumn,
			column("Desired", "integer", appsv1.DaemonSetStatus{}.SwaggerDoc()["desiredNumberScheduled"]),
			column("Current", "integer", appsv1.DaemonSetStatus{}.SwaggerDoc()["currentNumberScheduled"]),
			column("Ready", "integer", appsv1.DaemonSetStatus{}.SwaggerDoc()["numberReady"]),
			column("Up-to-date", "integer", appsv1.DaemonSetStatus{}.SwaggerDoc()["updatedNumberScheduled"]),
			column("Available", "integer", appsv1.DaemonSetStatus{}.SwaggerDoc()["numberAvailable"]),
			column("Node Selector", "string", "NodeSelector is a selector which must be true for the pod to fit on a node."),
			ageColumn, containersColumn, imagesColumn,
			wide("Selector", "string", appsv1.DaemonSetSpec{}.SwaggerDoc()["selector"]),
		},
		Cells: row(func(d *appsv1.DaemonSet) []any {
			names, images := containerCells(d.Spec.Template.Spec.Containers)
			return []any{
				d.Name, int64(d.Status.DesiredNumberScheduled), int64(d.Status.CurrentNumberScheduled), int64(d.Status.NumberReady),
				int64(d.Status.UpdatedNumberScheduled), int64(d.Status.NumberAvailable), labelsCell(d.Spec.Template.Spec.NodeSelector),
				age(d.CreationTimestamp), names, images, selectorCell(d.Spec.Selector),
			}
		}),
	}
}

func defaultDaemonSet(d *appsv1.DaemonSet) {
	s := &d.Spec.UpdateStrategy
	setDefault(&s.Type, appsv1.RollingUpdateDaemonSetStrategyType)
	if s.Type == appsv1.RollingUpdateDaemonSetStrategyType {
		setDefaultPtr(&s.RollingUpdate, appsv1.RollingUpdateDaemonSet{})
		setDefaultPtr(&s.RollingUpdate.MaxUnavailable, intstr.FromInt32(1))
		setDefaultPtr(&s.RollingUpdate.MaxSurge, intstr.FromInt32(0))
	}
	setDefaultPtr(&d.Spec.RevisionHistoryLimit, 10)
	defaultPodSpec(&d.Spec.Template.Spec)
	if _, ok := d.Annotations[appsv1.DeprecatedTemplateGeneration]; !ok {
		setTemplateGeneration(d, 0)
	}
}

// The count of a DaemonSet's templates was a field before apps/v1, and has lived in an annotation since.

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
	errs := selector(spec.Selector, path.Child("selector"))
	if parsed, err := metav1.LabelSelectorAsSelector(spec.Selector); err == nil {
		errs = append(errs, selectsTemplate(parsed, spec.Template.Labels, path)...)
	}
	if s := spec.Selector; s != nil && len(s.MatchLabels)+len(s.MatchExpressions) == 0 {
		errs = append(errs, field.Invalid(path.Child("selector"), s, "empty selector is invalid for daemonset"))
	}
	errs = append(errs, validatePodTemplate(&spec.Template, path.Child("template"))...)
	errs = append(errs, runsForEver("DaemonSet", &spec.Template.Spec, path.Child("template", "spec"))...)
	errs = append(errs, nonNegative(path.Child("minReadySeconds"), spec.MinReadySeconds)...)
	errs = append(errs, nonNegativePtr(path.Child("revisionHistoryLimit"), spec.RevisionHistoryLimit)...)
	at := path.Child("updateStrategy")
	switch spec.UpdateStrategy.Type {
	case appsv1.OnDeleteDaemonSetStrategyType:
	case appsv1.RollingUpdateDaemonSetStrategyType:
		r := spec.UpdateStrategy.RollingUpdate
		if r == nil {
			return append(errs, field.Required(at.Child("rollingUpdate"), ""))
		}
		errs = append(errs, validateDaemonRolling(r, at.Child("rollingUpdate"))...)
	default:
		errs = append(errs, field.NotSupported(at, spec.UpdateStrategy, []appsv1.DaemonSetUpdateStrategyType{
			appsv1.RollingUpdateDaemonSetStrategyType, appsv1.OnDeleteDaemonSetStrategyType}))
	}
	return errs
}

// validateDaemonRolling wants exactly one of the two bounds to be more than nothing: on each
// node the new pod either follows the old one or runs beside it.
func validateDaemonRolling(r *appsv1.RollingUpdateDaemonSet, path *field.Path) field.ErrorList {
	u, s := intstr.FromInt32(0), intstr.FromInt32(0)
	if r.MaxUnavailable != nil {
		u = *r.MaxUnavailable
	}
	if r.MaxSurge != nil {
		s = *r.MaxSurge
	}
	errs := countOrPercent(path.Child("maxUnavailable"), u)
	errs = append(errs, notOver100Percent(path.Child("maxUnavailable"), u)...)
	errs = append(errs, countOrPercent(path.Child("maxSurge"), s)...)
	errs = append(errs, notOver100Percent(path.Child("maxSurge"), s)...)
	switch noUnavailable, noSurge := percentOrCountIsZero(u), percentOrCountIsZero(s); {
	case noUnavailable && noSurge:
		errs = append(errs, field.Required(path.Child("maxUnavailable"), "cannot be 0 when maxSurge is 0"))
	case !noUnavailable && !noSurge:
		errs = append(errs, field.Invalid(path.Child("maxSurge"), s, "may not be set when maxUnavailable is non-zero"))
	}
	return errs
}

func validateDaemonSetUpdate(d, old *appsv1.DaemonSet) field.ErrorList {
	return unchanged(d.Spec.Selector, old.Spec.Selector, field.NewPath("spec", "selector"))
}

func validateDaemonSetStatus(d, old *appsv1.DaemonSet) field.ErrorList {
	path, s := field.NewPath("status"), &d.Status
	errs := counts(path, []count{
		{"currentNumberScheduled", s.CurrentNumberScheduled}, {"numberMisscheduled", s.NumberMisscheduled},
		{"desiredNumberScheduled", s.DesiredNumberScheduled}, {"numberReady", s.NumberReady},
		{"updatedNumberScheduled", s.UpdatedNumberScheduled}, {"numberAvailable", s.NumberAvailable},
		{"numberUnavailable", s.NumberUnavailable},
	})
	errs = append(errs, nonNegative(path.Child("observedGeneration"), s.ObservedGeneration)...)
	return append(errs, collisionCount(path.Child("collisionCount"), s.CollisionCount, old.Status.CollisionCount)...)
}
