package controller

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
)

// Dependents wakes the owners of objects that change: those of one kind, whose controller it is.
type Dependents struct {
	Controller *Controller
	Kind       schema.GroupVersionKind
	// Expected, if not nil, is informed of deletions.
	Expected *Expectations
	// Adopters, if not nil, is called with an object that has no controller; see Adopters.
	Adopters func(orphan metav1.Object)
}

// OwnerKey is the key of an object's controller, if that is of the kind.
func (d *Dependents) OwnerKey(obj metav1.Object) (string, bool) {
	ref := metav1.GetControllerOfNoCopy(obj)
	if ref == nil || ref.Kind != d.Kind.Kind || ref.APIVersion != d.Kind.GroupVersion().String() {
		return "", false
	}
	return cache.ObjectName{Namespace: obj.GetNamespace(), Name: ref.Name}.String(), true
}

// Changed wakes the owner, or those that might adopt an orphan.
func (d *Dependents) Changed(obj metav1.Object) {
	if key, ok := d.OwnerKey(obj); ok {
		d.Controller.Enqueue(key)
		return
	}
	d.Orphan(obj)
}

// Orphan wakes those that might adopt an object. One that has a controller, or is being deleted, is not adopted.
func (d *Dependents) Orphan(obj metav1.Object) {
	if d.Adopters != nil && metav1.GetControllerOfNoCopy(obj) == nil && obj.GetDeletionTimestamp() == nil {
		d.Adopters(obj)
	}
}

// Moved wakes the owner that an object had, where it has another one now.
func (d *Dependents) Moved(old, obj metav1.Object) {
	before, had := d.OwnerKey(old)
	if after, _ := d.OwnerKey(obj); had && before != after {
		d.Controller.Enqueue(before)
	}
}

// Gone reports a deletion to the owner's expectations and wakes the owner. A graceful deletion counts from the moment
// it shows; it may be reported twice.
func (d *Dependents) Gone(obj metav1.Object) {
	if key, ok := d.OwnerKey(obj); ok {
		if d.Expected != nil {
			d.Expected.DeletionObserved(key, obj.GetUID())
		}
		d.Controller.Enqueue(key)
	}
}

// Adopters wakes those owners of the orphan's namespace whose selector matches it. list has no errors but those of
// a lister, which has none.
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
