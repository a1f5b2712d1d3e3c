package apps

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/defaults"
	"github.com/coxswain-dev/coxswain/api/kit/table"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/podspec"
)

func deployments() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Group: "apps", Version: "v1", Kind: "Deployment", Plural: "deployments", Namespaced: true,
			ShortNames: []string{"deploy"},
			Categories: []string{"all"},
		},
		Storage: api.Storage{
			New:     func() api.Object { return &appsv1.Deployment{} },
			NewList: func() runtime.Object { return &appsv1.DeploymentList{} },
		},
		Strategy: api.Strategy{
			Default:        api.Typed(defaultDeployment),
			Validate:       api.Check(validateDeployment),
			ValidateUpdate: api.CheckUpdate(validateDeploymentUpdate),
			Status: api.StatusOf(
				func(d *appsv1.Deployment) *appsv1.DeploymentStatus { return &d.Status },
				(*appsv1.DeploymentStatus).DeepCopy,
			).WithMetadata(api.AllMetadata &^ api.Labels).CheckedBy(api.CheckUpdate(validateDeploymentStatus)),
			Scale: &api.Scale{
				Get: func(obj api.Object) (int32, int32, string) {
					d := obj.(*appsv1.Deployment)
					return ptr.Deref(d.Spec.Replicas, 0), d.Status.Replicas, selectorString(d.Spec.Selector)
				},
				Set: func(obj api.Object, n int32) { obj.(*appsv1.Deployment).Spec.Replicas = &n },
			},
			Generation: true,
			// The rollout's annotations are desired state, like the spec.
			GenerationCountsAnnotations: true,
			Warnings: api.Warn(func(d, old *appsv1.Deployment) []string {
				return append(podspec.WarnWorkloadName(d, old),
					podspec.WarnChangedTemplate(d, old, &d.Spec.Template)...)
			}),
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name,
				table.Column("Ready", "string", "Number of the pod with ready state"),
				table.Column("Up-to-date", "string", appsv1.DeploymentStatus{}.SwaggerDoc()["updatedReplicas"]),
				table.Column("Available", "string", appsv1.DeploymentStatus{}.SwaggerDoc()["availableReplicas"]),
				table.Age, table.Containers, table.Images,
				table.Wide("Selector", "string", appsv1.DeploymentSpec{}.SwaggerDoc()["selector"]),
			},
			Cells: api.Row(func(d *appsv1.Deployment) []any {
				names, images := table.ContainersOf(d.Spec.Template.Spec.Containers)
				return []any{
					d.Name, fmt.Sprintf("%d/%d", d.Status.ReadyReplicas, ptr.Deref(d.Spec.Replicas, 0)),
					int64(d.Status.UpdatedReplicas), int64(d.Status.AvailableReplicas),
					table.AgeOf(d.CreationTimestamp),
					names, images, parsedSelectorCell(d.Spec.Selector),
				}
			}),
		},
	}
}

func defaultDeployment(d *appsv1.Deployment) {
	spec := &d.Spec
	defaults.SetPtr(&spec.Replicas, 1)
	defaults.Set(&spec.Strategy.Type, appsv1.RollingUpdateDeploymentStrategyType)
	if spec.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType {
		defaults.SetPtr(&spec.Strategy.RollingUpdate, appsv1.RollingUpdateDeployment{})
		defaults.SetPtr(&spec.Strategy.RollingUpdate.MaxUnavailable, intstr.FromString("25%"))
		defaults.SetPtr(&spec.Strategy.RollingUpdate.MaxSurge, intstr.FromString("25%"))
	}
	defaults.SetPtr(&spec.RevisionHistoryLimit, 10)
	defaults.SetPtr(&spec.ProgressDeadlineSeconds, 600)
	podspec.Default(&spec.Template.Spec)
}

func validateDeployment(d *appsv1.Deployment) field.ErrorList {
	path, spec := field.NewPath("spec"), &d.Spec
	errs := validate.NonNegativePtr(path.Child("replicas"), spec.Replicas)
	errs = append(errs, validateSelectorAndTemplate(spec.Selector, &spec.Template, path)...)
	errs = append(errs, validateDeploymentStrategy(&spec.Strategy, path.Child("strategy"))...)
	errs = append(errs, validate.NonNegative(path.Child("minReadySeconds"), spec.MinReadySeconds)...)
	errs = append(errs, validate.NonNegativePtr(path.Child("revisionHistoryLimit"), spec.RevisionHistoryLimit)...)
	if deadline := spec.ProgressDeadlineSeconds; deadline != nil {
		fldPath := path.Child("progressDeadlineSeconds")
		errs = append(errs, validate.NonNegative(fldPath, *deadline)...)
		if *deadline <= spec.MinReadySeconds {
			errs = append(errs, field.Invalid(fldPath, *deadline, "must be greater than minReadySeconds"))
		}
	}
	return errs
}

func validateDeploymentStrategy(s *appsv1.DeploymentStrategy, path *field.Path) field.ErrorList {
	switch s.Type {
	case appsv1.RecreateDeploymentStrategyType:
		if s.RollingUpdate != nil {
			return field.ErrorList{field.Forbidden(path.Child("rollingUpdate"),
				"may not be specified when strategy `type` is '"+string(s.Type)+"'")}
		}
		return nil
	case appsv1.RollingUpdateDeploymentStrategyType:
		rollingUpdatePath := path.Child("rollingUpdate")
		if s.RollingUpdate == nil {
			return field.ErrorList{field.Required(rollingUpdatePath, "this should be defaulted and never be nil")}
		}
		return validateRollingUpdate(s.RollingUpdate.MaxUnavailable, s.RollingUpdate.MaxSurge, rollingUpdatePath)
	default:
		return field.ErrorList{field.NotSupported(path, s, []appsv1.DeploymentStrategyType{
			appsv1.RecreateDeploymentStrategyType, appsv1.RollingUpdateDeploymentStrategyType})}
	}
}

// validateRollingUpdate checks the two bounds, and that at least one of them is above zero.
func validateRollingUpdate(unavailable, surge *intstr.IntOrString, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	u, s := intstr.FromInt32(0), intstr.FromInt32(0)
	if unavailable != nil {
		u = *unavailable
	}
	if surge != nil {
		s = *surge
	}
	errs = append(errs, validate.CountOrPercent(path.Child("maxUnavailable"), u)...)
	errs = append(errs, validate.CountOrPercent(path.Child("maxSurge"), s)...)
	if validate.PercentOrCountIsZero(u) && validate.PercentOrCountIsZero(s) {
		errs = append(errs, field.Invalid(path.Child("maxUnavailable"), u, "may not be 0 when `maxSurge` is 0"))
	}
	return append(errs, validate.NotOver100Percent(path.Child("maxUnavailable"), u)...)
}

func validateDeploymentUpdate(d, old *appsv1.Deployment) field.ErrorList {
	return validate.Unchanged(d.Spec.Selector, old.Spec.Selector, field.NewPath("spec", "selector"))
}

func validateDeploymentStatus(d, old *appsv1.Deployment) field.ErrorList {
	path, s := field.NewPath("status"), &d.Status
	errs := validate.NonNegative(path.Child("observedGeneration"), s.ObservedGeneration)
	errs = append(errs, validate.Counts(path, []validate.Count{
		{"replicas", s.Replicas}, {"updatedReplicas", s.UpdatedReplicas}, {"readyReplicas", s.ReadyReplicas},
		{"availableReplicas", s.AvailableReplicas}, {"unavailableReplicas", s.UnavailableReplicas},
	})...)
	for _, n := range []validate.Count{{"updatedReplicas", s.UpdatedReplicas}, {"readyReplicas", s.ReadyReplicas},
		{"availableReplicas", s.AvailableReplicas}} {
		errs = append(errs, validate.NotAbove(path, n, validate.Count{"replicas", s.Replicas})...)
	}
	errs = append(errs, validate.NotAboveNamed(path, validate.Count{"availableReplicas", s.AvailableReplicas},
		s.ReadyReplicas, "readyReplicas")...)
	return append(errs, collisionCount(path.Child("collisionCount"), s.CollisionCount, old.Status.CollisionCount)...)
}

// selectorString returns a selector in the form of the scale subresource.
func selectorString(s *metav1.LabelSelector) string {
	parsed, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return labels.Nothing().String()
	}
	return parsed.String()
}

// parsedSelectorCell returns a Deployment's selector. Other kinds show <none> for an empty one.
func parsedSelectorCell(s *metav1.LabelSelector) string {
	parsed, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return "<invalid>"
	}
	return parsed.String()
}
