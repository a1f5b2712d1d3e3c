package apiserver

import (
	"net/http"
	"sync"
	"time"
)

// stall ends a stream whose client does not read: one on which a single write takes longer
// than limit, or at most half as long again. A deadline for each write would do the same,
// but has to be set and lifted with every event (HTTP/2 resets a stream when its deadline
// passes, even while nothing is written), and that costs more than making the event.
type stall struct {
	control *http.ResponseController
	limit   time.Duration

	mu      sync.Mutex
	since   time.Time // when the write in progress began; zero between writes
	stopped bool
	look    *time.Timer
}

// endStalled watches over a stream until it is stopped.
func endStalled(control *http.ResponseController, limit time.Duration) *stall {
	s := &stall{control: control, limit: limit}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.look = time.AfterFunc(limit/2, s.check)
	return s
}

func (s *stall) begin() { s.set(time.Now()) }

func (s *stall) end() { s.set(time.Time{}) }

func (s *stall) set(since time.Time) {
	s.mu.Lock()
	s.since = since
	s.mu.Unlock()
}

func (s *stall) check() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return
	}
	if !s.since.IsZero() && time.Since(s.since) >= s.limit {
		_ = s.control.SetWriteDeadline(time.Now())
		return
	}
	s.look.Reset(s.limit / 2)
}

// stop must be called before the handler returns: afterwards the connection is another
// request's.
func (s *stall) stop() {
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	s.look.Stop()
}
