package api

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/coxswain-dev/coxswain/api/field"
)

func deployments() *Resource {
	return &Resource{
		Group: "apps", Version: "v1", Kind: "Deployment", Plural: "deployments", Namespaced: true,
		ShortNames: []string{"deploy"},
		Categories: []string{"all"},
		New:        func() Object { return &appsv1.Deployment{} },
		NewList:    func() runtime.Object { return &appsv1.DeploymentList{} },

		Default:        with(defaultDeployment),
		Validate:       checked(validateDeployment),
		ValidateUpdate: checked2(validateDeploymentUpdate),
		Status: statusOf(
			func(d *appsv1.Deployment) *appsv1.DeploymentStatus { return &d.Status },
			(*appsv1.DeploymentStatus).DeepCopy,
		).withMetadata(AllMetadata &^ Labels).checkedBy(checked2(validateDeploymentStatus)),
		Scale: &Scale{
			Get: func(obj Object) (int32, int32, string) {
				d := obj.(*appsv1.Deployment)
				return deref(d.Spec.Replicas), d.Status.Replicas, selectorString(d.Spec.Selector)
			},
			Set: func(obj Object, n int32) { obj.(*appsv1.Deployment).Spec.Replicas = &n },
		},
		Generation: true,
		// The rollout's annotations are as much of a wish as the spec is.
		GenerationCountsAnnotations: true,
		Warnings: warned2(func(d, old *appsv1.Deployment) []string {
			return append(warnWorkloadName(d, old), warnTemplate(d, old, &d.Spec.Template)...)
		}),

		Columns: []metav1.TableColumnDefinition{
			nameColumn,
			column("Ready", "string", "Number of the pod with ready state"),
			column("Up-to-date", "string", appsv1.DeploymentStatus{}.SwaggerDoc()["updatedReplicas"]),
			column("Available", "string", appsv1.DeploymentStatus{}.SwaggerDoc()["availableReplicas"]),
			ageColumn, containersColumn, imagesColumn,
			wide("Selector", "string", appsv1.DeploymentSpec{}.SwaggerDoc()["selector"]),
		},
		Cells: row(func(d *appsv1.Deployment) []any {
			names, images := containerCells(d.Spec.Template.Spec.Containers)
			return []any{
				d.Name, fmt.Sprintf("%d/%d", d.Status.ReadyReplicas, deref(d.Spec.Replicas)),
				int64(d.Status.UpdatedReplicas), int64(d.Status.AvailableReplicas), age(d.CreationTimestamp),
				names, images, parsedSelectorCell(d.Spec.Selector),
			}
		}),
	}
}

func defaultDeployment(d *appsv1.Deployment) {
	spec := &d.Spec
	setDefaultPtr(&spec.Replicas, 1)
	setDefault(&spec.Strategy.Type, appsv1.RollingUpdateDeploymentStrategyType)
	if spec.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType {
		setDefaultPtr(&spec.Strategy.RollingUpdate, appsv1.RollingUpdateDeployment{})
		setDefaultPtr(&spec.Strategy.RollingUpdate.MaxUnavailable, intstr.FromString("25%"))
		setDefaultPtr(&spec.Strategy.RollingUpdate.MaxSurge, intstr.FromString("25%"))
	}
	setDefaultPtr(&spec.RevisionHistoryLimit, 10)
	setDefaultPtr(&spec.ProgressDeadlineSeconds, 600)
	defaultPodSpec(&spec.Template.Spec)
}

func validateDeployment(d *appsv1.Deployment) field.ErrorList {
	path, spec := field.NewPath("spec"), &d.Spec
	errs := nonNegativePtr(path.Child("replicas"), spec.Replicas)
	errs = append(errs, validateSelectorAndTemplate(spec.Selector, &spec.Template, path)...)
	errs = append(errs, validateDeploymentStrategy(&spec.Strategy, path.Child("strategy"))...)
	errs = append(errs, nonNegative(path.Child("minReadySeconds"), spec.MinReadySeconds)...)
	errs = append(errs, nonNegativePtr(path.Child("revisionHistoryLimit"), spec.RevisionHistoryLimit)...)
	if deadline := spec.ProgressDeadlineSeconds; deadline != nil {
		at := path.Child("progressDeadlineSeconds")
		errs = append(errs, nonNegative(at, *deadline)...)
		if *deadline <= spec.MinReadySeconds {
			errs = append(errs, field.Invalid(at, *deadline, "must be greater than minReadySeconds"))
		}
	}
	return errs
}

func validateDeploymentStrategy(s *appsv1.DeploymentStrategy, path *field.Path) field.ErrorList {
	switch s.Type {
	case appsv1.RecreateDeploymentStrategyType:
		if s.RollingUpdate != nil {
			return field.ErrorList{field.Forbidden(path.Child("rollingUpdate"), "may not be specified when strategy `type` is '"+string(s.Type)+"'")}
		}
		return nil
	case appsv1.RollingUpdateDeploymentStrategyType:
		at := path.Child("rollingUpdate")
		if s.RollingUpdate == nil {
			return field.ErrorList{field.Required(at, "this should be defaulted and never be nil")}
		}
		return validateRollingUpdate(s.RollingUpdate.MaxUnavailable, s.RollingUpdate.MaxSurge, at)
	default:
		return field.ErrorList{field.NotSupported(path, s, []appsv1.DeploymentStrategyType{
			appsv1.RecreateDeploymentStrategyType, appsv1.RollingUpdateDeploymentStrategyType})}
	}
}

// validateRollingUpdate checks the two bounds and that one of them leaves room to move.
func validateRollingUpdate(unavailable, surge *intstr.IntOrString, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	u, s := intstr.FromInt32(0), intstr.FromInt32(0)
	if unavailable != nil {
		u = *unavailable
	}
	if surge != nil {
		s = *surge
	}
	errs = append(errs, countOrPercent(path.Child("maxUnavailable"), u)...)
	errs = append(errs, countOrPercent(path.Child("maxSurge"), s)...)
	if percentOrCountIsZero(u) && percentOrCountIsZero(s) {
		errs = append(errs, field.Invalid(path.Child("maxUnavailable"), u, "may not be 0 when `maxSurge` is 0"))
	}
	return append(errs, notOver100Percent(path.Child("maxUnavailable"), u)...)
}

func validateDeploymentUpdate(d, old *appsv1.Deployment) field.ErrorList {
	return unchanged(d.Spec.Selector, old.Spec.Selector, field.NewPath("spec", "selector"))
}

func validateDeploymentStatus(d, old *appsv1.Deployment) field.ErrorList {
	path, s := field.NewPath("status"), &d.Status
	errs := nonNegative(path.Child("observedGeneration"), s.ObservedGeneration)
	errs = append(errs, counts(path, []count{
		{"replicas", s.Replicas}, {"updatedReplicas", s.UpdatedReplicas}, {"readyReplicas", s.ReadyReplicas},
		{"availableReplicas", s.AvailableReplicas}, {"unavailableReplicas", s.UnavailableReplicas},
	})...)
	for _, n := range []count{{"updatedReplicas", s.UpdatedReplicas}, {"readyReplicas", s.ReadyReplicas}, {"availableReplicas", s.AvailableReplicas}} {
		errs = append(errs, notAbove(path, n, count{"replicas", s.Replicas})...)
	}
	errs = append(errs, notAboveNamed(path, count{"availableReplicas", s.AvailableReplicas}, s.ReadyReplicas, "readyReplicas")...)
	return append(errs, collisionCount(path.Child("collisionCount"), s.CollisionCount, old.Status.CollisionCount)...)
}

// selectorString is the form that the scale subresource gives a selector.
func selectorString(s *metav1.LabelSelector) string {
	parsed, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return labels.Nothing().String()
	}
	return parsed.String()
}

// parsedSelectorCell is how a Deployment shows its selector; other kinds say <none> of an empty one.
func parsedSelectorCell(s *metav1.LabelSelector) string {
	parsed, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return "<invalid>"
	}
	return parsed.String()
}

func selectorCell(s *metav1.LabelSelector) string { return metav1.FormatLabelSelector(s) }
