package api

import (
	"strings"

	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/naming"
)

// Every write has its metadata checked, and hardly one finds something. What is plainly sound is known here without garbage; all
// else is put to apimachinery, which alone says what is wrong.

// soundName says whether an object has a name that its kind allows, and a namespace where it must.
func soundName(meta metav1.Object, namespaced bool, validateName func(name string, prefix bool) []string) bool {
	if prefix := meta.GetGenerateName(); prefix != "" && len(validateName(prefix, true)) > 0 {
		return false
	}
	if name := meta.GetName(); name == "" || len(validateName(name, false)) > 0 {
		return false
	}
	if !namespaced {
		return meta.GetNamespace() == ""
	}
	return len(naming.IsDNS1123Label(meta.GetNamespace())) == 0
}

// sameIdentity says whether an update leaves alone what may not change, of an object that is not being deleted.
func sameIdentity(meta, old metav1.Object) bool {
	created, was := meta.GetCreationTimestamp(), old.GetCreationTimestamp()
	return meta.GetResourceVersion() != "" && meta.GetGeneration() >= old.GetGeneration() &&
		meta.GetName() == old.GetName() && meta.GetNamespace() == old.GetNamespace() && meta.GetUID() == old.GetUID() &&
		created.UTC() == was.UTC() &&
		meta.GetDeletionTimestamp() == nil && old.GetDeletionTimestamp() == nil &&
		meta.GetDeletionGracePeriodSeconds() == nil && old.GetDeletionGracePeriodSeconds() == nil
}

// soundDetails is of what both creates and updates are asked.
func soundDetails(meta metav1.Object) bool {
	return meta.GetGeneration() >= 0 && soundLabels(meta.GetLabels()) && soundAnnotations(meta.GetAnnotations()) &&
		soundOwners(meta.GetOwnerReferences()) && soundManagedFields(meta.GetManagedFields())
}

func soundLabels(labels map[string]string) bool {
	for key, value := range labels {
		if len(naming.IsQualifiedName(key)) > 0 || len(naming.IsValidLabelValue(value)) > 0 {
			return false
		}
	}
	return true
}

func soundAnnotations(annotations map[string]string) bool {
	size := 0
	for key, value := range annotations {
		if size += len(key) + len(value); len(naming.IsQualifiedName(strings.ToLower(key))) > 0 {
			return false
		}
	}
	return size <= validation.TotalAnnotationSizeLimitB
}

func soundOwners(owners []metav1.OwnerReference) bool {
	controllers := 0
	for i := range owners {
		o := &owners[i]
		gv, err := schema.ParseGroupVersion(o.APIVersion)
		if err != nil || gv.Version == "" || o.Kind == "" || o.Name == "" || o.UID == "" {
			return false
		}
		if _, banned := validation.BannedOwners[gv.WithKind(o.Kind)]; banned {
			return false
		}
		if isTrue(o.Controller) {
			controllers++
		}
	}
	return controllers <= 1
}

func soundFinalizers(finalizers []string) bool {
	return len(finalizers) == 0 || len(validation.ValidateFinalizers(finalizers, nil)) == 0
}

func soundManagedFields(entries []metav1.ManagedFieldsEntry) bool {
	for i := range entries {
		e := &entries[i]
		switch {
		case e.Operation != metav1.ManagedFieldsOperationApply && e.Operation != metav1.ManagedFieldsOperationUpdate,
			e.FieldsType != "" && e.FieldsType != "FieldsV1",
			len(metav1validation.ValidateFieldManager(e.Manager, nil)) > 0,
			len(e.Subresource) > metav1validation.MaxSubresourceNameLength:
			return false
		}
	}
	return true
}

// validateLabels and validateAnnotations check those of what is no object itself: templates, and selectors that are written so.
func validateLabels(labels map[string]string, path *field.Path) field.ErrorList {
	if soundLabels(labels) {
		return nil
	}
	return metav1validation.ValidateLabels(labels, path.Plain())
}

func validateAnnotations(annotations map[string]string, path *field.Path) field.ErrorList {
	if soundAnnotations(annotations) {
		return nil
	}
	return validation.ValidateAnnotations(annotations, path.Plain())
}
