package api

import (
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/naming"
)

// Every write has its metadata checked, and hardly any check finds an error. The functions below recognize sound
// metadata without allocating. apimachinery checks all other metadata and words the errors.

// soundName reports whether an object has a name that its kind allows, and a namespace if it needs one.
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

// sameIdentity reports whether an update leaves the immutable metadata unchanged. It returns false for an object that
// is being deleted.
func sameIdentity(meta, old metav1.Object) bool {
	created, was := meta.GetCreationTimestamp(), old.GetCreationTimestamp()
	return meta.GetResourceVersion() != "" && meta.GetGeneration() >= old.GetGeneration() &&
		meta.GetName() == old.GetName() && meta.GetNamespace() == old.GetNamespace() && meta.GetUID() == old.GetUID() &&
		created.UTC() == was.UTC() &&
		meta.GetDeletionTimestamp() == nil && old.GetDeletionTimestamp() == nil &&
		meta.GetDeletionGracePeriodSeconds() == nil && old.GetDeletionGracePeriodSeconds() == nil
}

// soundDetails makes the checks that creates and updates share.
func soundDetails(meta metav1.Object) bool {
	return meta.GetGeneration() >= 0 && validate.SoundLabels(meta.GetLabels()) &&
		validate.SoundAnnotations(meta.GetAnnotations()) &&
		soundOwners(meta.GetOwnerReferences()) && soundManagedFields(meta.GetManagedFields())
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
		if ptr.Deref(o.Controller, false) {
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
