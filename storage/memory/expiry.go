package memory

import (
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
)

// maxExpired is how many documents are deleted at one revision because their time has come.
const maxExpired = 1000

// endsBefore orders the records that have a time to live.
func endsBefore(x, y *record) bool {
	if order := x.expires.Compare(y.expires); order != 0 {
		return order < 0
	}
	return x.path < y.path
}

// expiry is the timer for the nearest end of a time to live; there is none while nothing has such a time. The backend's
// lock guards it.
type expiry struct {
	timer clock.Timer
	due   atomic.Pointer[time.Time] // read without the lock
}

// awaitExpiry sets the timer for the nearest end, or stops it where nothing will ever end. The lock is held.
func (b *Backend) awaitExpiry() {
	first, some := b.mortals.Min()
	due := b.expiry.due.Load()
	if some && due != nil && first.expires.Equal(*due) && !b.closed {
		return
	}
	if b.expiry.timer != nil {
		b.expiry.timer.Stop()
		b.expiry.timer = nil
	}
	b.expiry.due.Store(nil)
	if !some || b.closed {
		return
	}
	b.expiry.due.Store(&first.expires)
	// A clock may call the function with a lock held that its methods take.
	b.expiry.timer = b.clock.AfterFunc(first.expires.Sub(b.clock.Now()), func() { go b.expire() })
}

// expireDue deletes what has ended, if its timer has not done so yet.
func (b *Backend) expireDue() {
	if due := b.expiry.due.Load(); due != nil && !due.After(b.clock.Now()) {
		b.expire()
	}
}

// expire deletes what has ended, and sets the timer for what ends next.
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

// expired are the deletions of what has ended, at most maxExpired.
func (b *Backend) expired(now time.Time) (changes []change) {
	b.mortals.Ascend(func(r *record) bool {
		if r.expires.After(now) || len(changes) == maxExpired {
			return false
		}
		changes = append(changes, change{before: r})
		return true
	})
	return changes
}
