package controller

import (
	"sync"

	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
)

// Written remembers how new the caches must be before they show what was last written for an
// owner. It protects, as Expectations do, against a decision on a cache that lags behind our
// own writes, where what is written is known by its resourceVersion: creations and updates.
//
// The zero value is ready for use, and safe for concurrent use.
type Written struct {
	mu    sync.Mutex
	owner map[string]map[cache.SharedIndexInformer]string
}

// Note records the version in the API server's answer to a write for the owner, of an object that
// the informer caches.
func (w *Written) Note(owner string, informer cache.SharedIndexInformer, version string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.owner == nil {
		w.owner = map[string]map[cache.SharedIndexInformer]string{}
	}
	if w.owner[owner] == nil {
		w.owner[owner] = map[cache.SharedIndexInformer]string{}
	}
	if !atLeast(w.owner[owner][informer], version) {
		w.owner[owner][informer] = version
	}
}

// Shown reports whether the caches have caught up with all that was noted for the owner. Where
// they have not, the watch events of the objects written will wake the owner.
func (w *Written) Shown(owner string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for informer, version := range w.owner[owner] {
		if !atLeast(informer.GetIndexer().LastStoreSyncResourceVersion(), version) {
			return false
		}
	}
	delete(w.owner, owner)
	return true
}

// Forget drops what was noted for an owner that is no more.
func (w *Written) Forget(owner string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.owner, owner)
}

// atLeast compares versions; one that cannot be compared counts as old, and none wanted is
// always reached.
func atLeast(have, want string) bool {
	if want == "" {
		return true
	}
	order, err := resourceversion.CompareResourceVersion(have, want)
	return err == nil && order >= 0
}
