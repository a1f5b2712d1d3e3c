package controller

import (
	"context"
	"sync"

	"github.com/coxswain-dev/coxswain/internal/clock/quiescence"
)

// Hold stops reconciliations while all objects of the cluster are replaced at once, until the caches show the new ones.
// Controllers would otherwise see some kinds before others: a ReplicaSet without its pods gets new ones. The zero value
// is ready to use, a nil *Hold never stops anything, and its methods are safe for concurrent use.
type Hold struct {
	mu      sync.Mutex
	running int           // reconciliations
	release chan struct{} // not nil from Begin to End, which closes it
	idle    chan struct{} // closed when running becomes 0; nil if Begin does not wait
	caches  quiescence.Group
}

// Begin stops new reconciliations and waits until none is under way, or ctx ends. The caller calls End afterwards. Only
// one caller at a time may hold.
func (h *Hold) Begin(ctx context.Context) {
	if h == nil {
		return
	}
	h.mu.Lock()
	h.release = make(chan struct{})
	if h.running == 0 {
		h.mu.Unlock()
		return
	}
	idle := make(chan struct{})
	h.idle = idle
	h.mu.Unlock()
	select {
	case <-idle:
	case <-ctx.Done():
	}
}

// Behind describes the caches that have not reached a revision.
func (h *Hold) Behind(revision int64) []string {
	if h == nil {
		return nil
	}
	return h.caches.Busy(revision)
}

// End lets reconciliations go on.
func (h *Hold) End() {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.release)
	h.release, h.idle = nil, nil
}

// AddCaches adds a probe of caches until remove is called.
func (h *Hold) AddCaches(p quiescence.Probe) (remove func()) {
	if h == nil {
		return func() {}
	}
	return h.caches.Add(p)
}

// enter waits until reconciliations may run, and reports whether this one may: ctx has not ended. The caller calls
// leave afterwards.
func (h *Hold) enter(ctx context.Context) bool {
	if h == nil {
		return ctx.Err() == nil
	}
	for ctx.Err() == nil {
		h.mu.Lock()
		release := h.release
		if release == nil {
			h.running++
			h.mu.Unlock()
			return true
		}
		h.mu.Unlock()
		select {
		case <-release:
		case <-ctx.Done():
		}
	}
	return false
}

func (h *Hold) leave() {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.running--; h.running == 0 && h.idle != nil {
		close(h.idle)
		h.idle = nil
	}
}
