package core

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/defaults"
	"github.com/coxswain-dev/coxswain/api/kit/table"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/podspec"
)

func replicationControllers() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Version: "v1", Kind: "ReplicationController", Plural: "replicationcontrollers", Namespaced: true,
			ShortNames: []string{"rc"},
			Categories: []string{"all"},
		},
		Storage: api.Storage{
			New:     func() api.Object { return &corev1.ReplicationController{} },
			NewList: func() runtime.Object { return &corev1.ReplicationControllerList{} },
			Fields:  []string{"status.replicas"},
		},
		Strategy: api.Strategy{
			Default:  api.Typed(defaultReplicationController),
			Validate: api.Check(validateReplicationController),
			Status: api.StatusOf(
				func(r *corev1.ReplicationController) *corev1.ReplicationControllerStatus { return &r.Status },
				(*corev1.ReplicationControllerStatus).DeepCopy,
			).WithMetadata(api.AllMetadata),
			Scale: &api.Scale{
				Get: func(obj api.Object) (int32, int32, string) {
					r := obj.(*corev1.ReplicationController)
					return ptr.Deref(r.Spec.Replicas, 0), r.Status.Replicas,
						labels.SelectorFromSet(r.Spec.Selector).String()
				},
				Set: func(obj api.Object, n int32) { obj.(*corev1.ReplicationController).Spec.Replicas = &n },
			},
			Generation: true,
			Warnings: api.Warn(func(r, old *corev1.ReplicationController) []string {
				return append(podspec.WarnWorkloadName(r, old), podspec.WarnChangedTemplate(r, old, r.Spec.Template)...)
			}),
			// As in Kubernetes, the pods of a replication controller are kept unless the delete requests otherwise.
			DefaultPropagation: metav1.DeletePropagationOrphan,
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name,
				table.Column("Desired", "integer", corev1.ReplicationControllerSpec{}.SwaggerDoc()["replicas"]),
				table.Column("Current", "integer", corev1.ReplicationControllerStatus{}.SwaggerDoc()["replicas"]),
				table.Column("Ready", "integer", corev1.ReplicationControllerStatus{}.SwaggerDoc()["readyReplicas"]),
				table.Age, table.Containers, table.Images,
				table.Wide("Selector", "string", corev1.ReplicationControllerSpec{}.SwaggerDoc()["selector"]),
			},
			Cells: api.Row(func(r *corev1.ReplicationController) []any {
				var names, images string
				if r.Spec.Template != nil {
					names, images = table.ContainersOf(r.Spec.Template.Spec.Containers)
				}
				return []any{
					r.Name, int64(ptr.Deref(r.Spec.Replicas, 0)), int64(r.Status.Replicas),
					int64(r.Status.ReadyReplicas),
					table.AgeOf(r.CreationTimestamp), names, images, table.LabelsOf(r.Spec.Selector),
				}
			}),
		},
	}
}

// defaultReplicationController defaults the selector and the labels to the template's labels.
func defaultReplicationController(r *corev1.ReplicationController) {
	defaults.SetPtr(&r.Spec.Replicas, 1)
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
	podspec.Default(&t.Spec)
}

func validateReplicationController(r *corev1.ReplicationController) field.ErrorList {
	path, spec := field.NewPath("spec"), &r.Spec
	errs := validate.NonNegative(path.Child("minReadySeconds"), spec.MinReadySeconds)
	if len(spec.Selector) == 0 {
		errs = append(errs, field.Required(path.Child("selector"), ""))
	}
	errs = append(errs, validate.NonNegativePtr(path.Child("replicas"), spec.Replicas)...)
	t := spec.Template
	if t == nil {
		return append(errs, field.Required(path.Child("template"), ""))
	}
	if len(spec.Selector) > 0 && !labels.SelectorFromSet(spec.Selector).Matches(labels.Set(t.Labels)) {
		errs = append(errs, field.Invalid(path.Child("template", "metadata", "labels"), t.Labels,
			"`selector` does not match template `labels`"))
	}
	errs = append(errs, podspec.ValidateTemplate(t, path.Child("template"))...)
	return append(errs, podspec.ValidateRunsForEver("ReplicationController", &t.Spec,
		path.Child("template", "spec"))...)
}

func podTemplates() *api.Resource {
	return &api.Resource{
		Names: api.Names{Version: "v1", Kind: "PodTemplate", Plural: "podtemplates", Namespaced: true},
		Storage: api.Storage{
			New:     func() api.Object { return &corev1.PodTemplate{} },
			NewList: func() runtime.Object { return &corev1.PodTemplateList{} },
		},
		Strategy: api.Strategy{
			ReturnDeleted: true,
			Default:       api.Typed(func(t *corev1.PodTemplate) { podspec.Default(&t.Template.Spec) }),
			Validate: api.Check(func(t *corev1.PodTemplate) field.ErrorList {
				return podspec.ValidateTemplate(&t.Template, field.NewPath("template"))
			}),
			Generation: true,
			Warnings: api.Warn(func(t, old *corev1.PodTemplate) []string {
				if old != nil && old.Generation == t.Generation {
					return nil
				}
				return podspec.WarnTemplate(&t.Template, field.NewPath("template"))
			}),
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name,
				table.Column("Containers", "string", "Names of each container in the template."),
				table.Column("Images", "string", "Images referenced by each container in the template."),
				table.Column("Pod Labels", "string", "The labels for the pod template."),
			},
			Cells: api.Row(func(t *corev1.PodTemplate) []any {
				names, images := table.ContainersOf(t.Template.Spec.Containers)
				return []any{t.Name, names, images, table.LabelsOf(t.Template.Labels)}
			}),
		},
	}
}
