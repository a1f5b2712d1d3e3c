package controller

import (
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// OwnerExpectations tracks, for each owner, the controller's own writes that its caches do not show yet. A
// reconciliation that starts before they do would act on a stale cache, for example create a pod twice. State
// is lost in a restart without harm: a new process starts after its caches have listed everything.
//
// Its methods are safe for concurrent use; the fields are set once, by NewOwnerExpectations.
type OwnerExpectations struct {
	// Versions expects creations and updates, by the resourceVersion in the server's answer.
	Versions VersionExpectations
	// Expected expects writes by count or uid: mostly deletions, because their answers need not carry a
	// resourceVersion.
	Expected *Expectations
	// Failures delays the replacement of pods that fail soon after their creation.
	Failures *Failures
}

// NewOwnerExpectations returns an OwnerExpectations without any expectation. maxFailureDelay bounds the delays
// of Failures.
func NewOwnerExpectations(c clock.PassiveClock, maxFailureDelay time.Duration) *OwnerExpectations {
	return &OwnerExpectations{Expected: NewExpectations(c), Failures: NewFailures(c, maxFailureDelay)}
}

// ForgetOwner drops all state of an owner that no longer exists.
func (e *OwnerExpectations) ForgetOwner(key string) {
	e.Versions.Forget(key)
	e.Expected.Forget(key)
	e.Failures.Forget(key)
}

// Satisfied reports whether the caches show all the controller's writes for the owner.
func (e *OwnerExpectations) Satisfied(key string) bool {
	return e.Versions.Satisfied(key) && e.Expected.Satisfied(key)
}

// SatisfiedOwner begins the reconciliation of an owner. It returns the owner from the informer's cache once all
// expectations of the owner are satisfied. ok is false if there is no work now: the owner no longer
// exists, or a watch event or a timer will enqueue the key again. The caller must not change the owner.
func SatisfiedOwner[T metav1.Object](c *Controller, e *OwnerExpectations, informer cache.SharedIndexInformer,
	key string) (owner T, ok bool) {
	if owner, ok = Cached[T](informer, key); !ok {
		e.ForgetOwner(key)
		return owner, false
	}
	if !e.Versions.Satisfied(key) {
		return owner, false
	}
	if !e.Expected.Satisfied(key) {
		c.EnqueuePeriodic(key, ExpectationsTTL+time.Second)
		return owner, false
	}
	// Read the cache again. The expectations were satisfied by the caches as of now, and the object read above
	// may be older than that.
	return Cached[T](informer, key)
}

// Cached returns the object with the key from the informer's cache. The caller must not change it.
func Cached[T any](informer cache.SharedIndexInformer, key string) (T, bool) {
	obj, _, _ := informer.GetStore().GetByKey(key) // a store in memory returns no error, and nil for an unknown key
	found, ok := obj.(T)
	return found, ok
}

// ExpectUpdate handles the answer to a write of an owner: after a success the owner is not reconciled again
// before the cache shows the write. NotFound is dropped, because an owner that no longer exists needs no
// further write.
func (e *OwnerExpectations) ExpectUpdate(informer cache.SharedIndexInformer, updated metav1.Object, err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		e.Versions.Expect(KeyOf(updated), informer, updated.GetResourceVersion())
	}
	return err
}
