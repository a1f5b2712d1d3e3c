package api

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/naming"
)

func namespaces() *Resource {
	return &Resource{
		Version: "v1", Kind: "Namespace", Plural: "namespaces",
		ShortNames: []string{"ns"},
		New:        func() Object { return &corev1.Namespace{} },
		NewList:    func() runtime.Object { return &corev1.NamespaceList{} },

		Default:       with(labelNamespace),
		PrepareCreate: with(prepareNamespace),
		PrepareUpdate: with2(keepNamespaceFinalizers),
		ValidateName:  naming.NameIsDNSLabel,
		Validate:      checked(validateNamespace),
		Status: statusOf(
			func(ns *corev1.Namespace) *corev1.NamespaceStatus { return &ns.Status },
			(*corev1.NamespaceStatus).DeepCopy,
		).withMetadata(AllMetadata).startingAs(with(func(ns *corev1.Namespace) { ns.Status.Phase = corev1.NamespaceActive })).
			checkedBy(checked2(validateNamespaceStatus)),
		Parts: []Subresource{{
			Name: "finalize", Version: "v1", Kind: "Namespace", Verbs: []string{"update"}, Metadata: AllMetadata,
			Copy:     with2(func(to, from *corev1.Namespace) { to.Spec.Finalizers = slices.Clone(from.Spec.Finalizers) }),
			Validate: checked2(func(ns, _ *corev1.Namespace) field.ErrorList { return validateNamespace(ns) }),
		}},
		Terminate: with(func(ns *corev1.Namespace) { ns.Status.Phase = corev1.NamespaceTerminating }),
		Held:      func(obj Object) bool { return len(obj.(*corev1.Namespace).Spec.Finalizers) > 0 },
		NoVerbs:   []string{"deletecollection"},
		Fields:    []string{"status.phase"},

		Columns: []metav1.TableColumnDefinition{
			nameColumn,
			column("Status", "string", "The status of the namespace"),
			ageColumn,
		},
		Cells: row(func(ns *corev1.Namespace) []any {
			return []any{ns.Name, string(ns.Status.Phase), age(ns.CreationTimestamp)}
		}),
	}
}

// labelNamespace lets selectors find a namespace by its name (KEP-2161).
func labelNamespace(ns *corev1.Namespace) {
	if ns.Name == "" || ns.Labels[corev1.LabelMetadataName] == ns.Name {
		return
	}
	if ns.Labels == nil {
		ns.Labels = map[string]string{}
	}
	ns.Labels[corev1.LabelMetadataName] = ns.Name
}

// prepareNamespace adds the finalizer by which the namespace controller holds a namespace
// until its content is gone. The label is set again as a generated name is known only now.
func prepareNamespace(ns *corev1.Namespace) {
	labelNamespace(ns)
	if slices.Contains(ns.Spec.Finalizers, corev1.FinalizerKubernetes) {
		return
	}
	ns.Spec.Finalizers = append(ns.Spec.Finalizers, corev1.FinalizerKubernetes)
}

// keepNamespaceFinalizers leaves spec.finalizers to the finalize subresource.
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
		errs = append(errs, standardFinalizer(string(f), path.Index(i))...)
	}
	return errs
}

// validateNamespaceStatus ties the phase to the deletion timestamp.
func validateNamespaceStatus(ns, _ *corev1.Namespace) field.ErrorList {
	path := field.NewPath("status", "Phase")
	if ns.DeletionTimestamp.IsZero() {
		if ns.Status.Phase != corev1.NamespaceActive {
			return field.ErrorList{field.Invalid(path, ns.Status.Phase, "may only be 'Active' if `deletionTimestamp` is empty")}
		}
		return nil
	}
	if ns.Status.Phase != corev1.NamespaceTerminating {
		return field.ErrorList{field.Invalid(path, ns.Status.Phase, "may only be 'Terminating' if `deletionTimestamp` is not empty")}
	}
	return nil
}
