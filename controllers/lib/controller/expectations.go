package controller

import (
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// ExpectationsTTL bounds how long a lost watch event can hold an owner up. A controller that
// finds its expectations unsatisfied reconciles again after it.
const ExpectationsTTL = 5 * time.Minute

// Expectations remembers which of our own creations and deletions the cache has not shown
// yet. Between a write and its watch event the cache is stale, and a controller that counted
// then would create or delete one pod too many; so Reconcile acts for an owner only when
// Satisfied returns true.
//
// Expect before writing, report failures with CreationFailed and DeletionObserved, and feed
// the informer's events to CreationObserved and DeletionObserved. It is safe for concurrent use.
type Expectations struct {
	clock clock.PassiveClock
	mu    sync.Mutex
	owner map[string]*expected
}

type expected struct {
	creations int
	deletions map[types.UID]struct{}
	since     time.Time
}

// NewExpectations returns an empty set.
func NewExpectations(c clock.PassiveClock) *Expectations {
	return &Expectations{clock: c, owner: map[string]*expected{}}
}

// ExpectCreations adds n creations for the owner.
func (e *Expectations) ExpectCreations(owner string, n int) {
	e.change(owner, true, func(x *expected) { x.creations += n })
}

// ExpectDeletions adds deletions for the owner.
func (e *Expectations) ExpectDeletions(owner string, uids ...types.UID) {
	e.change(owner, true, func(x *expected) {
		for _, uid := range uids {
			x.deletions[uid] = struct{}{}
		}
	})
}

// CreationObserved records that a creation has arrived in the cache.
func (e *Expectations) CreationObserved(owner string) { e.CreationFailed(owner, 1) }

// CreationFailed records that n of the expected creations will never be seen.
func (e *Expectations) CreationFailed(owner string, n int) {
	e.change(owner, false, func(x *expected) { x.creations -= n })
}

// Deletions are the objects whose deletion has not been seen yet.
func (e *Expectations) Deletions(owner string) []types.UID {
	e.mu.Lock()
	defer e.mu.Unlock()
	if x := e.owner[owner]; x != nil {
		return slices.Collect(maps.Keys(x.deletions))
	}
	return nil
}

// DeletionObserved records that the object is deleted, or being deleted, in the cache.
func (e *Expectations) DeletionObserved(owner string, uid types.UID) {
	e.change(owner, false, func(x *expected) { delete(x.deletions, uid) })
}

// Forget drops what is expected for an owner that is no more.
func (e *Expectations) Forget(owner string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.owner, owner)
}

// Satisfied reports whether the cache has shown all that was expected, or has had its time.
func (e *Expectations) Satisfied(owner string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	x := e.owner[owner]
	if x == nil {
		return true
	}
	if x.creations <= 0 && len(x.deletions) == 0 || e.clock.Since(x.since) > ExpectationsTTL {
		delete(e.owner, owner)
		return true
	}
	return false
}

func (e *Expectations) change(owner string, begin bool, f func(*expected)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	x := e.owner[owner]
	if x == nil {
		if !begin {
			return
		}
		x = &expected{deletions: map[types.UID]struct{}{}}
		e.owner[owner] = x
	}
	if begin {
		x.since = e.clock.Now()
	}
	f(x)
}
