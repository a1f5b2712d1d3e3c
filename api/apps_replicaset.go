package api

import (
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/coxswain-dev/coxswain/api/field"
)

func replicaSets() *Resource {
	return &Resource{
		Group: "apps", Version: "v1", Kind: "ReplicaSet", Plural: "replicasets", Namespaced: true,
		ShortNames: []string{"rs"},
		Categories: []string{"all"},
		New:        func() Object { return &appsv1.ReplicaSet{} },
		NewList:    func() runtime.Object { return &appsv1.ReplicaSetList{} },

		Default:        with(defaultReplicaSet),
		Validate:       checked(validateReplicaSet),
		ValidateUpdate: checked2(validateReplicaSetUpdate),
		Status: statusOf(
			func(r *appsv1.ReplicaSet) *appsv1.ReplicaSetStatus { return &r.Status },
			(*appsv1.ReplicaSetStatus).DeepCopy,
		).withMetadata(AllMetadata).checkedBy(checked2(validateReplicaSetStatus)),
		Scale: &Scale{
			Get: func(obj Object) (int32, int32, string) {
				r := obj.(*appsv1.ReplicaSet)
				return deref(r.Spec.Replicas), r.Status.Replicas, selectorString(r.Spec.Selector)
			},
			Set: func(obj Object, n int32) { obj.(*appsv1.ReplicaSet).Spec.Replicas = &n },
		},
		Generation: true,
		Warnings: warned2(func(r, old *appsv1.ReplicaSet) []string {
			return append(warnWorkloadName(r, old), warnTemplate(r, old, &r.Spec.Template)...)
		}),
		Fields: []string{"status.replicas"},

		Columns: []metav1.TableColumnDefinition{
			nameColumn,
			column("Desired", "integer", appsv1.ReplicaSetSpec{}.SwaggerDoc()["replicas"]),
			column("Current", "integer", appsv1.ReplicaSetStatus{}.SwaggerDoc()["replicas"]),
			column("Ready", "integer", appsv1.ReplicaSetStatus{}.SwaggerDoc()["readyReplicas"]),
			ageColumn, containersColumn, imagesColumn,
			wide("Selector", "string", appsv1.ReplicaSetSpec{}.SwaggerDoc()["selector"]),
		},
		Cells: row(func(r *appsv1.ReplicaSet) []any {
			names, images := containerCells(r.Spec.Template.Spec.Containers)
			return []any{
				r.Name, int64(deref(r.Spec.Replicas)), int64(r.Status.Replicas), int64(r.Status.ReadyReplicas),
				age(r.CreationTimestamp), names, images, selectorCell(r.Spec.Selector),
			}
		}),
	}
}

func defaultReplicaSet(r *appsv1.ReplicaSet) {
	setDefaultPtr(&r.Spec.Replicas, 1)
	defaultPodSpec(&r.Spec.Template.Spec)
}

func validateReplicaSet(r *appsv1.ReplicaSet) field.ErrorList {
	path := field.NewPath("spec")
	errs := nonNegativePtr(path.Child("replicas"), r.Spec.Replicas)
	errs = append(errs, nonNegative(path.Child("minReadySeconds"), r.Spec.MinReadySeconds)...)
	return append(errs, validateSelectorAndTemplate(r.Spec.Selector, &r.Spec.Template, path)...)
}

func validateReplicaSetUpdate(r, old *appsv1.ReplicaSet) field.ErrorList {
	return unchanged(r.Spec.Selector, old.Spec.Selector, field.NewPath("spec", "selector"))
}

func validateReplicaSetStatus(r, _ *appsv1.ReplicaSet) field.ErrorList {
	path, s := field.NewPath("status"), &r.Status
	errs := nonNegative(path.Child("observedGeneration"), s.ObservedGeneration)
	parts := []count{{"fullyLabeledReplicas", s.FullyLabeledReplicas}, {"readyReplicas", s.ReadyReplicas}, {"availableReplicas", s.AvailableReplicas}}
	errs = append(errs, counts(path, append(parts, count{"replicas", s.Replicas}))...)
	for _, n := range parts {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, notAbove(path, n, count{"replicas", s.Replicas})...)
	}
	return append(errs, notAboveNamed(path, count{"availableReplicas", s.AvailableReplicas}, s.ReadyReplicas, "readyReplicas")...)
}
