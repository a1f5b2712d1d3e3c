package api

import (
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/naming"
)

// ValidateMetadata returns the errors in the metadata of an object that is about to be created (old is nil) or
// updated. It applies apimachinery's rules for all kinds, the kind's rule for names, and, for most built-in kinds, the
// rule that a finalizer needs a domain.
func (r *Resource) ValidateMetadata(obj, old Object) field.ErrorList {
	path, validateName := field.NewPath("metadata").Plain(), r.ValidateName
	if r.GenericMetadata && old != nil {
		validateName = validate.SegmentName
	}
	errs := ValidateObjectMeta(obj, r.Namespaced, validateName, path)
	if !r.GenericMetadata {
		errs = append(errs, standardFinalizers(obj, path)...)
	}
	if old != nil {
		errs = append(errs, ValidateObjectMetaUpdate(obj, old, path)...)
	}
	return errs
}

// ValidateObjectMeta checks the metadata of an object of any kind: the form of name and generateName (nil
// validateName means a DNS-1123 subdomain), the presence or absence of a namespace, labels, annotations
// (256 KiB together), owner references, finalizers and managed fields. path is "metadata" for an object at
// the top.
func ValidateObjectMeta(meta metav1.Object, namespaced bool, validateName func(name string, prefix bool) []string,
	path *field.Plain) field.ErrorList {
	if validateName == nil {
		validateName = naming.NameIsDNSSubdomain
	}
	if soundName(meta, namespaced, validateName) && soundDetails(meta) && soundFinalizers(meta.GetFinalizers()) {
		return nil
	}
	return validation.ValidateObjectMetaAccessor(meta, namespaced, validateName, path)
}

// ValidateObjectMetaUpdate rejects changes of immutable metadata: name, namespace, uid, creationTimestamp,
// deletionTimestamp and its grace period. The generation may not decrease, and an object that is being deleted may not
// get new finalizers.
func ValidateObjectMetaUpdate(meta, old metav1.Object, path *field.Plain) field.ErrorList {
	if sameIdentity(meta, old) && soundDetails(meta) {
		return nil
	}
	return validation.ValidateObjectMetaAccessorUpdate(meta, old, path)
}

// standardFinalizers requires a finalizer without a domain to be one of Kubernetes' own.
func standardFinalizers(meta metav1.Object, path *field.Plain) field.ErrorList {
	var errs field.ErrorList
	for i, f := range meta.GetFinalizers() {
		if field.Enough(errs) {
			break
		}
		if !validate.IsStandardFinalizer(f) {
			errs = append(errs, validate.Finalizer(f, field.In(path).Child("finalizers").Index(i))...)
		}
	}
	return errs
}
