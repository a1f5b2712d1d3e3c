package core

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/table"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/naming"
)

func namespaces() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Version: "v1", Kind: "Namespace", Plural: "namespaces",
			ShortNames:       []string{"ns"},
			UnsupportedVerbs: []string{"deletecollection"},
		},
		Storage: api.Storage{
			ReadYourWrites: true,
			New:            func() api.Object { return &corev1.Namespace{} },
			NewList:        func() runtime.Object { return &corev1.NamespaceList{} },
			Fields:         []string{"status.phase"},
		},
		Strategy: api.Strategy{
			Default:       api.Typed(labelNamespace),
			PrepareCreate: api.Typed(prepareNamespace),
			PrepareUpdate: api.Typed2(keepNamespaceFinalizers),
			ValidateName:  naming.NameIsDNSLabel,
			Validate:      api.Check(validateNamespace),
			Status: api.StatusOf(
				func(ns *corev1.Namespace) *corev1.NamespaceStatus { return &ns.Status },
				(*corev1.NamespaceStatus).DeepCopy,
			).WithMetadata(api.AllMetadata).StartingAs(api.Typed(func(ns *corev1.Namespace) {
				ns.Status.Phase = corev1.NamespaceActive
			})).
				CheckedBy(api.CheckUpdate(validateNamespaceStatus)),
			Subresources: []api.Subresource{{
				Name: "finalize", Version: "v1", Kind: "Namespace", Verbs: []string{"update"},
				Metadata: api.AllMetadata,
				Copy: api.Typed2(func(dst, src *corev1.Namespace) {
					dst.Spec.Finalizers = slices.Clone(src.Spec.Finalizers)
				}),
				Validate: api.CheckUpdate(func(ns,
					_ *corev1.Namespace) field.ErrorList {
					return validateNamespace(ns)
				}),
			}},
			Terminate:     api.Typed(func(ns *corev1.Namespace) { ns.Status.Phase = corev1.NamespaceTerminating }),
			HasFinalizers: func(obj api.Object) bool { return len(obj.(*corev1.Namespace).Spec.Finalizers) > 0 },
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name,
				table.Column("Status", "string", "The status of the namespace"),
				table.Age,
			},
			Cells: api.Row(func(ns *corev1.Namespace) []any {
				return []any{ns.Name, string(ns.Status.Phase), table.AgeOf(ns.CreationTimestamp)}
			}),
		},
	}
}

// labelNamespace makes a namespace selectable by its name (KEP-2161).
func labelNamespace(ns *corev1.Namespace) {
	if ns.Name == "" || ns.Labels[corev1.LabelMetadataName] == ns.Name {
		return
	}
	if ns.Labels == nil {
		ns.Labels = map[string]string{}
	}
	ns.Labels[corev1.LabelMetadataName] = ns.Name
}

// prepareNamespace adds the finalizer that keeps a namespace until the namespace controller has emptied it. It sets
// the label again, because a generated name is only available now.
func prepareNamespace(ns *corev1.Namespace) {
	labelNamespace(ns)
	if slices.Contains(ns.Spec.Finalizers, corev1.FinalizerKubernetes) {
		return
	}
	ns.Spec.Finalizers = append(ns.Spec.Finalizers, corev1.FinalizerKubernetes)
}

// keepNamespaceFinalizers keeps spec.finalizers, which only the subresource finalize may change.
func keepNamespaceFinalizers(ns, old *corev1.Namespace) {
	ns.Spec.Finalizers = old.Spec.Finalizers
}

func validateNamespace(ns *corev1.Namespace) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("spec", "finalizers")
	for i, f := range ns.Spec.Finalizers {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, validation.ValidateFinalizerName(string(f), path.Index(i).Plain())...)
		errs = append(errs, validate.Finalizer(string(f), path.Index(i))...)
	}
	return errs
}

// validateNamespaceStatus requires the phase to agree with the deletion timestamp.
func validateNamespaceStatus(ns, _ *corev1.Namespace) field.ErrorList {
	path := field.NewPath("status", "Phase")
	if ns.DeletionTimestamp.IsZero() {
		if ns.Status.Phase != corev1.NamespaceActive {
			return field.ErrorList{field.Invalid(path, ns.Status.Phase,
				"may only be 'Active' if `deletionTimestamp` is empty")}
		}
		return nil
	}
	if ns.Status.Phase != corev1.NamespaceTerminating {
		return field.ErrorList{field.Invalid(path, ns.Status.Phase,
			"may only be 'Terminating' if `deletionTimestamp` is not empty")}
	}
	return nil
}
