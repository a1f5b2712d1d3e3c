package apps

import (
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/defaults"
	"github.com/coxswain-dev/coxswain/api/kit/table"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/podspec"
)

func replicaSets() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Group: "apps", Version: "v1", Kind: "ReplicaSet", Plural: "replicasets", Namespaced: true,
			ShortNames: []string{"rs"},
			Categories: []string{"all"},
		},
		Storage: api.Storage{
			New:     func() api.Object { return &appsv1.ReplicaSet{} },
			NewList: func() runtime.Object { return &appsv1.ReplicaSetList{} },
			Fields:  []string{"status.replicas"},
		},
		Strategy: api.Strategy{
			Default:        api.Typed(defaultReplicaSet),
			Validate:       api.Check(validateReplicaSet),
			ValidateUpdate: api.CheckUpdate(validateReplicaSetUpdate),
			Status: api.StatusOf(
				func(r *appsv1.ReplicaSet) *appsv1.ReplicaSetStatus { return &r.Status },
				(*appsv1.ReplicaSetStatus).DeepCopy,
			).WithMetadata(api.AllMetadata).CheckedBy(api.CheckUpdate(validateReplicaSetStatus)),
			Scale: &api.Scale{
				Get: func(obj api.Object) (int32, int32, string) {
					r := obj.(*appsv1.ReplicaSet)
					return ptr.Deref(r.Spec.Replicas, 0), r.Status.Replicas, selectorString(r.Spec.Selector)
				},
				Set: func(obj api.Object, n int32) { obj.(*appsv1.ReplicaSet).Spec.Replicas = &n },
			},
			Generation: true,
			Warnings: api.Warn(func(r, old *appsv1.ReplicaSet) []string {
				return append(podspec.WarnWorkloadName(r, old),
					podspec.WarnChangedTemplate(r, old, &r.Spec.Template)...)
			}),
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name,
				table.Column("Desired", "integer", appsv1.ReplicaSetSpec{}.SwaggerDoc()["replicas"]),
				table.Column("Current", "integer", appsv1.ReplicaSetStatus{}.SwaggerDoc()["replicas"]),
				table.Column("Ready", "integer", appsv1.ReplicaSetStatus{}.SwaggerDoc()["readyReplicas"]),
				table.Age, table.Containers, table.Images,
				table.Wide("Selector", "string", appsv1.ReplicaSetSpec{}.SwaggerDoc()["selector"]),
			},
			Cells: api.Row(func(r *appsv1.ReplicaSet) []any {
				names, images := table.ContainersOf(r.Spec.Template.Spec.Containers)
				return []any{
					r.Name, int64(ptr.Deref(r.Spec.Replicas, 0)), int64(r.Status.Replicas),
					int64(r.Status.ReadyReplicas),
					table.AgeOf(r.CreationTimestamp), names, images, metav1.FormatLabelSelector(r.Spec.Selector),
				}
			}),
		},
	}
}

func defaultReplicaSet(r *appsv1.ReplicaSet) {
	defaults.SetPtr(&r.Spec.Replicas, 1)
	podspec.Default(&r.Spec.Template.Spec)
}

func validateReplicaSet(r *appsv1.ReplicaSet) field.ErrorList {
	path := field.NewPath("spec")
	errs := validate.NonNegativePtr(path.Child("replicas"), r.Spec.Replicas)
	errs = append(errs, validate.NonNegative(path.Child("minReadySeconds"), r.Spec.MinReadySeconds)...)
	return append(errs, validateSelectorAndTemplate(r.Spec.Selector, &r.Spec.Template, path)...)
}

func validateReplicaSetUpdate(r, old *appsv1.ReplicaSet) field.ErrorList {
	return validate.Unchanged(r.Spec.Selector, old.Spec.Selector, field.NewPath("spec", "selector"))
}

func validateReplicaSetStatus(r, _ *appsv1.ReplicaSet) field.ErrorList {
	path, s := field.NewPath("status"), &r.Status
	errs := validate.NonNegative(path.Child("observedGeneration"), s.ObservedGeneration)
	parts := []validate.Count{{"fullyLabeledReplicas", s.FullyLabeledReplicas}, {"readyReplicas", s.ReadyReplicas},
		{"availableReplicas", s.AvailableReplicas}}
	errs = append(errs, validate.Counts(path, append(parts, validate.Count{"replicas", s.Replicas}))...)
	for _, n := range parts {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, validate.NotAbove(path, n, validate.Count{"replicas", s.Replicas})...)
	}
	return append(errs, validate.NotAboveNamed(path, validate.Count{"availableReplicas", s.AvailableReplicas},
		s.ReadyReplicas, "readyReplicas")...)
}
