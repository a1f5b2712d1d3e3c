package memory

import (
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
)

// maxExpired is the largest number of expired documents that are deleted at one revision.
const maxExpired = 1000

// endsBefore orders records with a time to live by their expiration, then by path.
func endsBefore(x, y *record) bool {
	if order := x.expires.Compare(y.expires); order != 0 {
		return order < 0
	}
	return x.path < y.path
}

// expiry is the timer for the next expiration. There is no timer while no document has a time to live. The backend's
// lock guards it.
type expiry struct {
	timer clock.Timer
	due   atomic.Pointer[time.Time] // the time of the timer, or nil; read without the lock
}

// awaitExpiry sets the timer for the next expiration, or stops it if no document expires. The caller holds the lock.
func (b *Backend) awaitExpiry() {
	first, ok := b.expiring.Min()
	due := b.expiry.due.Load()
	if ok && due != nil && first.expires.Equal(*due) && !b.closed {
		return
	}
	if b.expiry.timer != nil {
		b.expiry.timer.Stop()
		b.expiry.timer = nil
	}
	b.expiry.due.Store(nil)
	if !ok || b.closed {
		return
	}
	b.expiry.due.Store(&first.expires)
	// A clock may call the function while it holds a lock that its methods need, so expire runs in its own goroutine.
	b.expiry.timer = b.clock.AfterFunc(first.expires.Sub(b.clock.Now()), func() { go b.expire() })
}

// expireDue deletes expired documents if the timer has not done so yet.
func (b *Backend) expireDue() {
	if due := b.expiry.due.Load(); due != nil && !due.After(b.clock.Now()) {
		b.expire()
	}
}

// expire deletes expired documents and sets the timer for the next expiration.
func (b *Backend) expire() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for !b.closed {
		ended := b.expired(b.clock.Now())
		if len(ended) == 0 {
			b.awaitExpiry()
			return
		}
		b.apply(b.now.Load()+1, ended)
	}
}

// expired returns the deletions of expired documents, at most maxExpired.
func (b *Backend) expired(now time.Time) (changes []change) {
	b.expiring.Ascend(func(r *record) bool {
		if r.expires.After(now) || len(changes) == maxExpired {
			return false
		}
		changes = append(changes, change{before: r})
		return true
	})
	return changes
}
