package apiserver

import (
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/equal"
)

// The lengths of generated names: apimachinery's rule for generateName.
const (
	maxGeneratedName = 63
	generatedSuffix  = 5
)

func generateName(base string) string {
	if len(base) > maxGeneratedName-generatedSuffix {
		base = base[:maxGeneratedName-generatedSuffix]
	}
	return base + rand.String(generatedSuffix)
}

// place checks that an object belongs where the request's path says, and puts it there. A
// namespace in an object of a cluster-scoped kind means nothing, and is dropped.
func place(r *request, obj api.Object) error {
	if ns := obj.GetNamespace(); ns != "" && r.namespace != "" && ns != r.namespace {
		return apierrors.NewBadRequest(fmt.Sprintf(
			"the namespace of the provided object does not match the namespace sent on the request (%s does not match %s)", ns, r.namespace))
	}
	obj.SetNamespace(r.namespace)
	if r.name == "" {
		return nil
	}
	if name := obj.GetName(); name != "" && name != r.name {
		return apierrors.NewBadRequest(fmt.Sprintf(
			"the name of the object (%s) does not match the name on the URL (%s)", name, r.name))
	}
	obj.SetName(r.name)
	return nil
}

// beforeCreate sets what only the server may set on a new object.
func (s *Server) beforeCreate(res *api.Resource, obj api.Object) {
	obj.SetUID(types.UID(uuid.NewUUID()))
	obj.SetCreationTimestamp(metav1.NewTime(s.Clock.Now()).Rfc3339Copy())
	obj.SetDeletionTimestamp(nil)
	obj.SetDeletionGracePeriodSeconds(nil)
	obj.SetSelfLink("")
	obj.SetManagedFields(nil)
	obj.SetGeneration(0)
	if res.Generation {
		obj.SetGeneration(1)
	}
	if res.Status != nil {
		res.Status.Reset(obj)
	}
	if res.PrepareCreate != nil {
		res.PrepareCreate(obj)
	}
}

// beforeUpdate carries over from the old object what an update may not change.
func beforeUpdate(res *api.Resource, obj, old api.Object) error {
	if uid := obj.GetUID(); uid != "" && uid != old.GetUID() {
		return apierrors.NewConflict(res.GroupResource(), obj.GetName(),
			fmt.Errorf("Precondition failed: UID in precondition: %v, UID in object meta: %v", uid, old.GetUID()))
	}
	obj.SetUID(old.GetUID())
	obj.SetResourceVersion(old.GetResourceVersion()) // an update that names none is unconditional
	obj.SetCreationTimestamp(old.GetCreationTimestamp())
	obj.SetDeletionTimestamp(old.GetDeletionTimestamp())
	obj.SetDeletionGracePeriodSeconds(old.GetDeletionGracePeriodSeconds())
	obj.SetGenerateName(old.GetGenerateName())
	obj.SetGeneration(old.GetGeneration())
	obj.SetSelfLink("")
	obj.SetManagedFields(nil)
	if res.Status != nil {
		res.Status.Copy(obj, old)
	}
	if res.PrepareUpdate != nil {
		res.PrepareUpdate(obj, old)
	}
	if res.Generation && (!sameBesideMeta(obj, old) || res.GenerationCountsAnnotations && !maps.Equal(obj.GetAnnotations(), old.GetAnnotations())) {
		obj.SetGeneration(old.GetGeneration() + 1)
	}
	return nil
}

// sameBesideMeta compares all but the metadata. The status has been carried over already.
func sameBesideMeta(obj, old api.Object) bool {
	meta, ok := objectMeta(obj)
	oldMeta, ok2 := objectMeta(old)
	if !ok || !ok2 {
		return equal.Semantic(obj, old)
	}
	kept := *meta
	defer func() { *meta = kept }()
	*meta = *oldMeta
	obj.GetObjectKind().SetGroupVersionKind(old.GetObjectKind().GroupVersionKind())
	return equal.Semantic(obj, old)
}

func objectMeta(obj api.Object) (*metav1.ObjectMeta, bool) {
	accessor, ok := obj.(metav1.ObjectMetaAccessor)
	if !ok {
		return nil, false
	}
	meta, ok := accessor.GetObjectMeta().(*metav1.ObjectMeta)
	return meta, ok
}

// validatePartMeta is what there is against the metadata that a write to a subresource gives an object.
func validatePartMeta(res *api.Resource, obj, old api.Object) field.ErrorList {
	if maps.Equal(obj.GetLabels(), old.GetLabels()) && maps.Equal(obj.GetAnnotations(), old.GetAnnotations()) &&
		slices.Equal(obj.GetFinalizers(), old.GetFinalizers()) && equal.Semantic(obj.GetOwnerReferences(), old.GetOwnerReferences()) {
		return nil
	}
	path := field.NewPath("metadata")
	errs := api.ValidateObjectMeta(obj, res.Namespaced, res.ValidateName, path)
	return append(errs, api.ValidateObjectMetaUpdate(obj, old, path)...)
}

// validate is what the registration has against an object that is about to be created (old is nil) or updated.
func validate(res *api.Resource, obj, old api.Object) field.ErrorList {
	path := field.NewPath("metadata")
	errs := api.ValidateObjectMeta(obj, res.Namespaced, res.ValidateName, path)
	if res.Validate != nil {
		errs = append(errs, res.Validate(obj)...)
	}
	if old == nil && res.ValidateCreate != nil {
		errs = append(errs, res.ValidateCreate(obj)...)
	}
	if old != nil {
		errs = append(errs, api.ValidateObjectMetaUpdate(obj, old, path)...)
		if res.ValidateUpdate != nil {
			errs = append(errs, res.ValidateUpdate(obj, old)...)
		}
	}
	return api.ValidateReferences(errs, obj, old)
}
