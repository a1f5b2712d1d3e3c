package conn

import (
	"net/http"
	"sync"
	"time"
)

// Stall ends a stream if its client does not read: a single write may take limit, and is cut off after at most
// one and a half times that. A deadline for each write would do the same, but must be set and cleared for every
// event (HTTP/2 resets a stream when its deadline passes, even between writes), which costs more than
// encoding the event.
//
// The goroutine that writes calls Begin, End and Stop. The timer's goroutine calls check.
type Stall struct {
	control *http.ResponseController
	limit   time.Duration

	mu      sync.Mutex // guards the fields below
	since   time.Time  // when the write in progress began; zero between writes
	stopped bool
	timer   *time.Timer
}

// EndStalled watches a stream until Stop. The caller calls Begin before each write and End after it.
func EndStalled(control *http.ResponseController, limit time.Duration) *Stall {
	s := &Stall{control: control, limit: limit}
	s.mu.Lock() // check may run before AfterFunc has returned, and uses timer
	defer s.mu.Unlock()
	s.timer = time.AfterFunc(limit/2, s.check)
	return s
}

// Begin notes that a write begins.
func (s *Stall) Begin() { s.set(time.Now()) }

// End notes that the write has returned.
func (s *Stall) End() { s.set(time.Time{}) }

func (s *Stall) set(since time.Time) {
	s.mu.Lock()
	s.since = since
	s.mu.Unlock()
}

func (s *Stall) check() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return
	}
	if !s.since.IsZero() && time.Since(s.since) >= s.limit {
		_ = s.control.SetWriteDeadline(time.Now())
		return
	}
	s.timer.Reset(s.limit / 2)
}

// Stop ends the watch. It must be called before the handler returns: afterwards the connection belongs to another
// request. stopped makes sure of that even if check is waiting for the lock.
func (s *Stall) Stop() {
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	s.timer.Stop()
}
