// Package quiescence reports whether the parts of a control plane are idle: a state that only a change from outside
// or the passing of time can end.
package quiescence

import (
	"slices"
	"sync"
)

// Probe describes in a few words the work that a part has left, or returns "" if the part only waits: for a change,
// or for its clock. A part has work left while its caches have not reached the revision, a change that they have
// seen is not handled, a key is in a work queue or with a worker, a retry of a failed attempt is due soon, or a
// write is not answered. Probes are called often, from any goroutine; they must not block.
type Probe func(revision int64) string

// Group holds the probes of one control plane. Its zero value is ready to use, and a nil *Group ignores probes. Its
// methods are safe for concurrent use; probes are called without its lock.
type Group struct {
	mu     sync.Mutex
	probes []*Probe
}

// Add adds a probe until remove is called.
func (g *Group) Add(p Probe) (remove func()) {
	if g == nil {
		return func() {}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	entry := &p
	g.probes = append(g.probes, entry)
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.probes = slices.DeleteFunc(g.probes, func(p *Probe) bool { return p == entry })
	}
}

// Busy returns the work that the parts have left until they have handled all changes up to a revision.
func (g *Group) Busy(revision int64) (work []string) {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	probes := slices.Clone(g.probes)
	g.mu.Unlock()
	for _, p := range probes {
		if w := (*p)(revision); w != "" {
			work = append(work, w)
		}
	}
	return work
}
