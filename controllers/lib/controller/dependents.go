package controller

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
)

// Dependents enqueues the owners of objects that change. Kind is the kind of the owners, which Controller
// reconciles.
type Dependents struct {
	Controller *Controller
	Kind       schema.GroupVersionKind
	// Expected, if set, observes deletions.
	Expected *Expectations
	// Adopters, if set, is called with objects that have no controller; see the function Adopters.
	Adopters func(orphan metav1.Object)
}

// OwnerKey returns the key of an object's controller, if that has the kind.
func (d *Dependents) OwnerKey(obj metav1.Object) (string, bool) {
	ref := metav1.GetControllerOfNoCopy(obj)
	if ref == nil || ref.Kind != d.Kind.Kind || ref.APIVersion != d.Kind.GroupVersion().String() {
		return "", false
	}
	return cache.ObjectName{Namespace: obj.GetNamespace(), Name: ref.Name}.String(), true
}

// Changed enqueues the object's owner or, for an orphan, the owners that may adopt it.
func (d *Dependents) Changed(obj metav1.Object) {
	if key, ok := d.OwnerKey(obj); ok {
		d.Controller.Enqueue(key)
		return
	}
	d.Orphan(obj)
}

// Orphan enqueues the owners that may adopt an object. An object that has a controller or is being deleted is
// not adopted.
func (d *Dependents) Orphan(obj metav1.Object) {
	if d.Adopters != nil && metav1.GetControllerOfNoCopy(obj) == nil && obj.GetDeletionTimestamp() == nil {
		d.Adopters(obj)
	}
}

// Moved enqueues the object's former owner, if the owner has changed.
func (d *Dependents) Moved(old, obj metav1.Object) {
	before, had := d.OwnerKey(old)
	if after, _ := d.OwnerKey(obj); had && before != after {
		d.Controller.Enqueue(before)
	}
}

// Gone reports a deletion to the owner's expectations and enqueues the owner. A graceful deletion counts once
// the deletionTimestamp is set; it may be reported twice.
func (d *Dependents) Gone(obj metav1.Object) {
	if key, ok := d.OwnerKey(obj); ok {
		if d.Expected != nil {
			d.Expected.DeletionObserved(key, obj.GetUID())
		}
		d.Controller.Enqueue(key)
	}
}

// Adopters returns a function that enqueues the owners in an orphan's namespace whose selector matches it. list
// is a lister's function, and therefore does not fail.
func Adopters[T metav1.Object](c *Controller, list func(namespace string) ([]T, error),
	selector func(T) *metav1.LabelSelector) func(metav1.Object) {
	return func(orphan metav1.Object) {
		owners, err := list(orphan.GetNamespace())
		if err != nil {
			return
		}
		for _, owner := range owners {
			s, err := metav1.LabelSelectorAsSelector(selector(owner))
			if err == nil && !s.Empty() && s.Matches(labels.Set(orphan.GetLabels())) {
				c.EnqueueObject(owner)
			}
		}
	}
}
