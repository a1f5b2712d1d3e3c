package strategy

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/equal"
)

// ValidateMetadata returns the errors in the metadata that a write to a subresource changes.
func ValidateMetadata(res *api.Resource, obj, old api.Object) field.ErrorList {
	if maps.Equal(obj.GetLabels(), old.GetLabels()) && maps.Equal(obj.GetAnnotations(), old.GetAnnotations()) &&
		slices.Equal(obj.GetFinalizers(), old.GetFinalizers()) &&
		equal.Semantic(obj.GetOwnerReferences(), old.GetOwnerReferences()) {
		return nil
	}
	return res.ValidateMetadata(obj, old)
}

// Validate returns the registration's errors for an object that is created (old is nil) or updated.
func Validate(res *api.Resource, obj, old api.Object) field.ErrorList {
	errs := res.ValidateMetadata(obj, old)
	if res.Validate != nil {
		errs = append(errs, res.Validate(obj)...)
	}
	if old == nil && res.ValidateCreate != nil {
		errs = append(errs, res.ValidateCreate(obj)...)
	}
	if old != nil && res.ValidateUpdate != nil {
		errs = append(errs, res.ValidateUpdate(obj, old)...)
	}
	return res.ValidateReferences(errs, obj, old)
}
