package controller

import (
	"sync"

	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
)

// VersionExpectations records, for each owner, the resourceVersion that each cache must have reached before it
// shows the last write for the owner. It protects against decisions on a stale cache as Expectations does, for
// writes with a known resourceVersion: creations and updates. The arrival of a write need not be reported,
// because every informer knows the last resourceVersion that it contains.
//
// The zero value is ready for use, and safe for concurrent use.
type VersionExpectations struct {
	mu sync.Mutex
	// owner has the highest expected version by owner and informer. mu guards it.
	owner map[string]map[cache.SharedIndexInformer]string
}

// Expect records the version in the API server's answer to a write for the owner. The written object is in the
// informer's cache, or will be. A lower version than an earlier one has no effect, so writes may be reported in
// any order.
func (e *VersionExpectations) Expect(owner string, informer cache.SharedIndexInformer, version string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.owner == nil {
		e.owner = map[string]map[cache.SharedIndexInformer]string{}
	}
	if e.owner[owner] == nil {
		e.owner[owner] = map[cache.SharedIndexInformer]string{}
	}
	if !atLeast(e.owner[owner][informer], version) {
		e.owner[owner][informer] = version
	}
}

// Satisfied reports whether the caches have reached all versions expected for the owner, and then forgets them.
// Otherwise the watch events of the written objects will enqueue the owner: they have not arrived yet.
func (e *VersionExpectations) Satisfied(owner string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for informer, version := range e.owner[owner] {
		if !atLeast(informer.GetIndexer().LastStoreSyncResourceVersion(), version) {
			return false
		}
	}
	delete(e.owner, owner)
	return true
}

// Forget drops the expectations of an owner that no longer exists.
func (e *VersionExpectations) Forget(owner string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.owner, owner)
}

// atLeast reports whether the version have is at least want. A version that cannot be compared counts as older; an
// empty want is always reached.
func atLeast(have, want string) bool {
	if want == "" {
		return true
	}
	order, err := resourceversion.CompareResourceVersion(have, want)
	return err == nil && order >= 0
}
