package controller

import (
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// ExpectationsTTL bounds how long a lost watch event can block an owner. A controller with unsatisfied
// expectations reconciles again after it.
const ExpectationsTTL = 5 * time.Minute

// Expectations tracks our own creations and deletions that the cache does not show yet. Between a write and its
// watch event the cache is stale, and a controller that counted pods then would create or delete one too many.
// So Reconcile acts for an owner only while Satisfied returns true.
//
// Call ExpectCreations or ExpectDeletions before the write: its watch event may arrive before its answer.
// Report failed writes by CreationFailed and DeletionObserved, and pass the informer's events to
// CreationObserved and DeletionObserved. It is safe for concurrent use.
type Expectations struct {
	clock clock.PassiveClock
	mu    sync.Mutex
	owner map[string]*expected // guarded by mu; has no entry for a satisfied owner after Satisfied
}

type expected struct {
	creations int // may be below 0, if events arrive of writes that were not expected
	deletions map[types.UID]struct{}
	since     time.Time // of the last expectation that was added
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

// Deletions returns the objects whose deletion the cache does not show yet.
func (e *Expectations) Deletions(owner string) []types.UID {
	e.mu.Lock()
	defer e.mu.Unlock()
	if x := e.owner[owner]; x != nil {
		return slices.Collect(maps.Keys(x.deletions))
	}
	return nil
}

// DeletionObserved records that the cache shows the object's deletion or its deletionTimestamp, or that the
// delete failed.
func (e *Expectations) DeletionObserved(owner string, uid types.UID) {
	e.change(owner, false, func(x *expected) { delete(x.deletions, uid) })
}

// Forget drops the expectations of an owner that no longer exists.
func (e *Expectations) Forget(owner string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.owner, owner)
}

// Satisfied reports whether the cache shows all expected writes. Expectations older than ExpectationsTTL count
// as satisfied: their events were lost.
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
