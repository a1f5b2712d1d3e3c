package controller

import (
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// Memory is what a controller remembers of its own writes for each owner, so that it never decides on a cache that
// does not show them yet. A restart loses it without harm: the new process lists everything first.
//
// It is safe for concurrent use.
type Memory struct {
	// Written has the resourceVersions of creations and updates.
	Written Written
	// Expected has what is known by count or uid: mostly deletions.
	Expected *Expectations
	// Failures delays the replacement of pods that fail soon.
	Failures *Failures
}

// NewMemory returns an empty Memory. maxFailureDelay bounds the delays of Failures.
func NewMemory(c clock.PassiveClock, maxFailureDelay time.Duration) *Memory {
	return &Memory{Expected: NewExpectations(c), Failures: NewFailures(c, maxFailureDelay)}
}

// ForgetOwner drops everything that is remembered for an owner that no longer exists.
func (m *Memory) ForgetOwner(key string) {
	m.Written.Forget(key)
	m.Expected.Forget(key)
	m.Failures.Forget(key)
}

// Shown reports whether the caches show everything that was written for the owner.
func (m *Memory) Shown(key string) bool { return m.Written.Shown(key) && m.Expected.Satisfied(key) }

// Settled begins the reconciliation of an owner: it returns the owner as the informer's cache has it, once the caches
// show everything that was written for it. ok is false if there is nothing to do now: the owner no longer exists, or
// events that are still to come, or a timer, will enqueue the key again. The owner must not be changed.
func Settled[T metav1.Object](c *Controller, m *Memory, informer cache.SharedIndexInformer, key string) (owner T,
	ok bool) {
	if owner, ok = Cached[T](informer, key); !ok {
		m.ForgetOwner(key)
		return owner, false
	}
	if !m.Written.Shown(key) {
		return owner, false
	}
	if !m.Expected.Satisfied(key) {
		c.EnqueuePeriodic(key, ExpectationsTTL+time.Second)
		return owner, false
	}
	// Read again: the object read above may be older than what the caches have been asked for since.
	return Cached[T](informer, key)
}

// Cached returns the object with the key from the informer's cache; it must not be changed.
func Cached[T any](informer cache.SharedIndexInformer, key string) (T, bool) {
	obj, _, _ := informer.GetStore().GetByKey(key) // a store in memory: no error, and nil for an unknown key
	found, ok := obj.(T)
	return found, ok
}

// Wrote notes the answer to a write of an owner, so that it is not reconciled again before the cache shows it. An owner
// that no longer exists is no error.
func (m *Memory) Wrote(informer cache.SharedIndexInformer, updated metav1.Object, err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		m.Written.Note(KeyOf(updated), informer, updated.GetResourceVersion())
	}
	return err
}
