package api

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/coxswain-dev/coxswain/api/field"
)

func replicationControllers() *Resource {
	return &Resource{
		Version: "v1", Kind: "ReplicationController", Plural: "replicationcontrollers", Namespaced: true,
		ShortNames: []string{"rc"},
		Categories: []string{"all"},
		New:        func() Object { return &corev1.ReplicationController{} },
		NewList:    func() runtime.Object { return &corev1.ReplicationControllerList{} },

		Default:  with(defaultReplicationController),
		Validate: checked(validateReplicationController),
		Status: statusOf(
			func(r *corev1.ReplicationController) *corev1.ReplicationControllerStatus { return &r.Status },
			(*corev1.ReplicationControllerStatus).DeepCopy,
		).withMetadata(AllMetadata),
		Scale: &Scale{
			Get: func(obj Object) (int32, int32, string) {
				r := obj.(*corev1.ReplicationController)
				return deref(r.Spec.Replicas), r.Status.Replicas, labels.SelectorFromSet(r.Spec.Selector).String()
			},
			Set: func(obj Object, n int32) { obj.(*corev1.ReplicationController).Spec.Replicas = &n },
		},
		Generation: true,
		Warnings: warned2(func(r, old *corev1.ReplicationController) []string {
			return append(warnWorkloadName(r, old), warnTemplate(r, old, r.Spec.Template)...)
		}),
		Fields: []string{"status.replicas"},
		// Kubernetes leaves the pods of a replication controller unless asked otherwise.
		DefaultPropagation: metav1.DeletePropagationOrphan,

		Columns: []metav1.TableColumnDefinition{
			nameColumn,
			column("Desired", "integer", corev1.ReplicationControllerSpec{}.SwaggerDoc()["replicas"]),
			column("Current", "integer", corev1.ReplicationControllerStatus{}.SwaggerDoc()["replicas"]),
			column("Ready", "integer", corev1.ReplicationControllerStatus{}.SwaggerDoc()["readyReplicas"]),
			ageColumn, containersColumn, imagesColumn,
			wide("Selector", "string", corev1.ReplicationControllerSpec{}.SwaggerDoc()["selector"]),
		},
		Cells: row(func(r *corev1.ReplicationController) []any {
			var names, images string
			if r.Spec.Template != nil {
				names, images = containerCells(r.Spec.Template.Spec.Containers)
			}
			return []any{
				r.Name, int64(deref(r.Spec.Replicas)), int64(r.Status.Replicas), int64(r.Status.ReadyReplicas),
				age(r.CreationTimestamp), names, images, labelsCell(r.Spec.Selector),
			}
		}),
	}
}

// defaultReplicationController takes the selector and the labels from the template.
func defaultReplicationController(r *corev1.ReplicationController) {
	setDefaultPtr(&r.Spec.Replicas, 1)
	t := r.Spec.Template
	if t == nil {
		return
	}
	if len(t.Labels) > 0 {
		if len(r.Spec.Selector) == 0 {
			r.Spec.Selector = maps.Clone(t.Labels)
		}
		if len(r.Labels) == 0 {
			r.Labels = maps.Clone(t.Labels)
		}
	}
	defaultPodSpec(&t.Spec)
}

func validateReplicationController(r *corev1.ReplicationController) field.ErrorList {
	path, spec := field.NewPath("spec"), &r.Spec
	errs := nonNegative(path.Child("minReadySeconds"), spec.MinReadySeconds)
	if len(spec.Selector) == 0 {
		errs = append(errs, field.Required(path.Child("selector"), ""))
	}
	errs = append(errs, nonNegativePtr(path.Child("replicas"), spec.Replicas)...)
	t := spec.Template
	if t == nil {
		return append(errs, field.Required(path.Child("template"), ""))
	}
	if len(spec.Selector) > 0 && !labels.SelectorFromSet(spec.Selector).Matches(labels.Set(t.Labels)) {
		errs = append(errs, field.Invalid(path.Child("template", "metadata", "labels"), t.Labels, "`selector` does not match template `labels`"))
	}
	errs = append(errs, validatePodTemplate(t, path.Child("template"))...)
	return append(errs, runsForEver("ReplicationController", &t.Spec, path.Child("template", "spec"))...)
}

func podTemplates() *Resource {
	return &Resource{
		Version: "v1", Kind: "PodTemplate", Plural: "podtemplates", Namespaced: true,
		New:     func() Object { return &corev1.PodTemplate{} },
		NewList: func() runtime.Object { return &corev1.PodTemplateList{} },

		Default: with(func(t *corev1.PodTemplate) { defaultPodSpec(&t.Template.Spec) }),
		Validate: checked(func(t *corev1.PodTemplate) field.ErrorList {
			return validatePodTemplate(&t.Template, field.NewPath("template"))
		}),
		Generation: true,
		Warnings: warned2(func(t, old *corev1.PodTemplate) []string {
			if old != nil && old.Generation == t.Generation {
				return nil
			}
			return warnPodTemplate(&t.Template, field.NewPath("template"))
		}),

		Columns: []metav1.TableColumnDefinition{
			nameColumn,
			column("Containers", "string", "Names of each container in the template."),
			column("Images", "string", "Images referenced by each container in the template."),
			column("Pod Labels", "string", "The labels for the pod template."),
		},
		Cells: row(func(t *corev1.PodTemplate) []any {
			names, images := containerCells(t.Template.Spec.Containers)
			return []any{t.Name, names, images, labelsCell(t.Template.Labels)}
		}),
	}
}
