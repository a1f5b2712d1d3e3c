// Package strategy applies a kind's registration to an object before it is stored; the name is Kubernetes'. An object
// comes in with the stored one that it replaces. It is prepared for a create or an update here and for a deletion in
// deletion.go, and checked in validate.go.
//
// All of it depends on the objects, the registration and the time alone. Nothing is read or stored.
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

// The lengths of generated names: apimachinery's rule for generateName.
const (
	maxGeneratedName = 63
	generatedSuffix  = 5
)

// GenerateName returns a random name that begins with base.
func GenerateName(base string) string {
	if len(base) > maxGeneratedName-generatedSuffix {
		base = base[:maxGeneratedName-generatedSuffix]
	}
	return base + rand.String(generatedSuffix)
}

// WipeSystemFields removes from a new object what only the server may set, before admission sees it.
func WipeSystemFields(obj api.Object) {
	obj.SetUID("")
	obj.SetCreationTimestamp(metav1.Time{})
	obj.SetDeletionTimestamp(nil)
	obj.SetDeletionGracePeriodSeconds(nil)
	obj.SetSelfLink("")
}

// BeforeCreate sets what only the server may set on a new object.
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

// BeforeUpdate carries over from the old object the fields that an update may not change.
func BeforeUpdate(res *api.Resource, obj, old api.Object) error {
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
	if res.Generation && (!sameBesideMeta(obj, old) || res.GenerationCountsAnnotations &&
		!maps.Equal(obj.GetAnnotations(), old.GetAnnotations())) {
		obj.SetGeneration(old.GetGeneration() + 1)
	}
	return nil
}

// CountGeneration raises the generation of an object that replaces old, if more than its metadata has changed and its
// kind counts that.
func CountGeneration(res *api.Resource, obj, old api.Object) {
	if res.Generation && !sameBesideMeta(obj, old) {
		obj.SetGeneration(old.GetGeneration() + 1)
	}
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
