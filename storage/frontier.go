package storage

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// frontier is the revision that memory has reached, and the callers that wait for it to move.
type frontier struct {
	revision atomic.Int64
	mu       sync.Mutex
	waiters  []frontierWaiter
}

type frontierWaiter struct {
	revision int64
	reached  chan struct{}
}

func (f *frontier) now() int64 { return f.revision.Load() }

// advance moves the frontier; it never goes back. One goroutine at a time may call it.
func (f *frontier) advance(revision int64) {
	if revision <= f.revision.Load() {
		return
	}
	f.revision.Store(revision)
	f.mu.Lock()
	defer f.mu.Unlock()
	rest := f.waiters[:0]
	for _, w := range f.waiters {
		if w.revision <= revision {
			close(w.reached)
		} else {
			rest = append(rest, w)
		}
	}
	clear(f.waiters[len(rest):])
	f.waiters = rest
}

// reach is closed when the frontier has reached the revision; nil if it has already.
func (f *frontier) reach(revision int64) <-chan struct{} {
	if f.now() >= revision {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.now() >= revision {
		return nil
	}
	w := frontierWaiter{revision, make(chan struct{})}
	f.waiters = append(f.waiters, w)
	return w.reached
}

// leave removes a wait that was given up.
func (f *frontier) leave(reached <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, w := range f.waiters {
		if w.reached == reached {
			f.waiters = append(f.waiters[:i], f.waiters[i+1:]...)
			return
		}
	}
}

const (
	// answerTimeout bounds a request to etcd, and how long the frontier may lag behind its answer.
	answerTimeout = 3 * time.Second
	// futureTimeout bounds the wait for a revision that a client claims to have seen.
	futureTimeout = 3 * time.Second
	// nudgeAfter is how long the frontier may lag before etcd is asked to report progress: there is no
	// other way to see a revision that changed nothing below our prefix.
	nudgeAfter = 10 * time.Millisecond
	nudgeEvery = 100 * time.Millisecond
	// silence is how long a member of etcd may send nothing at all before another one is used: a
	// machine that hangs or is cut off keeps its connections for a long time.
	silence = time.Second
)

// Frontier is the revision memory has reached. It never goes back.
func (s *Store) Frontier() int64 { return s.frontier.now() }

// Revision is a linearizable revision of etcd that memory has reached: concurrent callers
// share one question, and the call returns when the frontier has caught up with the answer.
func (s *Store) Revision(ctx context.Context) (int64, error) {
	revision, err := s.question.next(ctx)
	if err != nil {
		return 0, err
	}
	return revision, s.await(ctx, revision, answerTimeout, ErrUnavailable)
}

// await returns when the frontier has reached the revision, or the given error once patience is over.
func (s *Store) await(ctx context.Context, revision int64, patience time.Duration, late error) error {
	reached := s.frontier.reach(revision)
	if reached == nil {
		return nil
	}
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	nudge := time.NewTimer(nudgeAfter)
	defer nudge.Stop()
	suspicion := time.NewTicker(silence)
	defer suspicion.Stop()
	before := s.Frontier()
	for {
		select {
		case <-reached:
			return nil
		case <-suspicion.C:
			// That a client believes in a revision is no reason to doubt the watch.
			if now := s.Frontier(); now > before || errors.Is(late, ErrFuture) {
				before = now
				continue
			}
			s.doubtWatch()
			continue
		case <-nudge.C:
			nudge.Reset(nudgeEvery)
			if err := s.backend.RequestProgress(s.ctx); err != nil {
				s.options.Log.Debug("cannot request progress of etcd", "err", err)
			}
			continue
		case <-ctx.Done():
			s.frontier.leave(reached)
			return fmt.Errorf("%w: wait for revision %d: %w", late, revision, ctx.Err())
		case <-s.ctx.Done():
			s.frontier.leave(reached)
			return errClosed
		case <-deadline.C:
			s.frontier.leave(reached)
			now := s.Frontier()
			if now >= revision { // both happened while this goroutine waited to be scheduled
				return nil
			}
			return fmt.Errorf("%w: memory is at revision %d, not yet at %d", late, now, revision)
		}
	}
}

// ownPatience bounds the wait of a Commit for memory. A watch that is broken must not stop writers.
const ownPatience = 100 * time.Millisecond

// awaitOwn waits until the frontier has reached a revision that this store has written.
func (s *Store) awaitOwn(revision int64) {
	reached := s.frontier.reach(revision)
	if reached == nil {
		return
	}
	patience := time.NewTimer(ownPatience)
	defer patience.Stop()
	select {
	case <-reached:
	case <-patience.C:
		s.frontier.leave(reached)
	case <-s.ctx.Done():
		s.frontier.leave(reached)
	}
}

// doubtWatch makes follow replace a watch that has fallen silent.
func (s *Store) doubtWatch() {
	select {
	case s.doubts <- struct{}{}:
	default:
	}
}

// askRevision sends the request itself, and repeats it when there is no answer.
func (s *Store) askRevision() (int64, error) {
	before := s.Frontier()
	var revision int64
	var err error
	for giveUp := time.Now().Add(answerTimeout); ; {
		ctx, cancel := context.WithTimeout(s.ctx, silence)
		revision, err = s.backend.Revision(ctx)
		silent := ctx.Err() != nil
		cancel()
		if err == nil {
			break
		}
		if !silent || s.ctx.Err() != nil || time.Now().After(giveUp) {
			return 0, err
		}
	}
	if revision < before {
		return 0, fmt.Errorf("%w: etcd is at revision %d and has been at %d: it lost data", ErrUnavailable,
			revision, before)
	}
	return revision, nil
}

// question lets concurrent callers share one request for etcd's revision. An answer is valid only for
// callers that arrived before the request was sent, so a caller always joins the next request, never
// the one in flight.
type question struct {
	ask func() (int64, error)

	mu      sync.Mutex
	asking  bool
	closed  bool
	pending *answer
	flights sync.WaitGroup
}

type answer struct {
	done     chan struct{}
	revision int64
	err      error
}

func (q *question) next(ctx context.Context) (int64, error) {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return 0, errClosed
	}
	if q.pending == nil {
		q.pending = &answer{done: make(chan struct{})}
	}
	a := q.pending
	if !q.asking {
		q.asking = true
		q.flights.Go(q.run)
	}
	q.mu.Unlock()
	select {
	case <-a.done:
		return a.revision, a.err
	case <-ctx.Done():
		return 0, fmt.Errorf("%w: ask etcd for its revision: %w", ErrUnavailable, ctx.Err())
	}
}

// run sends requests as long as there are callers waiting.
func (q *question) run() {
	for {
		q.mu.Lock()
		a := q.pending
		q.pending = nil
		q.asking = a != nil
		q.mu.Unlock()
		if a == nil {
			return
		}
		a.revision, a.err = q.ask()
		close(a.done)
	}
}

// close waits for the requests under way. Callers that come later, such as handlers that outlive their server by a
// moment, get an error.
func (q *question) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.flights.Wait()
}
