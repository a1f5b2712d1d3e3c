// Package strategy applies a kind's registration to an object before it is stored. The name is Kubernetes'. It
// prepares objects for a create or update here and for a deletion in deletion.go, and validates them in
// validate.go.
//
// The results depend only on the objects, the registration and the time. The package does not access the store.
package strategy

import (
	"fmt"
	"maps"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/equal"
)

// These are the lengths that apimachinery uses for generateName.
const (
	maxGeneratedName = 63
	generatedSuffix  = 5
)

// GenerateName returns base with a random suffix, truncating base if necessary.
func GenerateName(base string) string {
	if len(base) > maxGeneratedName-generatedSuffix {
		base = base[:maxGeneratedName-generatedSuffix]
	}
	return base + rand.String(generatedSuffix)
}

// WipeSystemFields removes the fields that only the server may set from a new object, before admission sees it.
func WipeSystemFields(obj api.Object) {
	obj.SetUID("")
	obj.SetCreationTimestamp(metav1.Time{})
	obj.SetDeletionTimestamp(nil)
	obj.SetDeletionGracePeriodSeconds(nil)
	obj.SetSelfLink("")
}

// BeforeCreate sets the fields that only the server may set on a new object.
func BeforeCreate(res *api.Resource, obj api.Object, now time.Time) {
	obj.SetUID(types.UID(uuid.NewUUID()))
	obj.SetCreationTimestamp(metav1.NewTime(now).Rfc3339Copy())
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

// BeforeUpdate copies the fields that an update may not change from the old object.
func BeforeUpdate(res *api.Resource, obj, old api.Object) error {
	if uid := obj.GetUID(); uid != "" && uid != old.GetUID() {
		return apierrors.NewConflict(res.GroupResource(), obj.GetName(),
			fmt.Errorf("Precondition failed: UID in precondition: %v, UID in object meta: %v", uid, old.GetUID()))
	}
	obj.SetUID(old.GetUID())
	obj.SetResourceVersion(old.GetResourceVersion()) // an update without a resource version is unconditional
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
	if res.Generation && (!sameBesideMeta(obj, old) || res.GenerationCountsAnnotations &&
		!maps.Equal(obj.GetAnnotations(), old.GetAnnotations())) {
		obj.SetGeneration(old.GetGeneration() + 1)
	}
	return nil
}

// CountGeneration increments the generation of an object if it differs from old in more than metadata and its kind
// has generations.
func CountGeneration(res *api.Resource, obj, old api.Object) {
	if res.Generation && !sameBesideMeta(obj, old) {
		obj.SetGeneration(old.GetGeneration() + 1)
	}
}

// sameBesideMeta compares everything except metadata. It relies on the status having been copied already.
func sameBesideMeta(obj, old api.Object) bool {
	meta, ok := objectMeta(obj)
	oldMeta, ok2 := objectMeta(old)
	if !ok || !ok2 {
		return equal.Semantic(obj, old)
	}
	original := *meta
	defer func() { *meta = original }()
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
