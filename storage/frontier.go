package storage

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// frontier is the latest revision that memory has reached: every change up to it is in the collections. Reads wait
// for it.
//
// revision only grows. One goroutine at a time advances it, after it has applied the changes and never before, so a
// reader that sees a revision here finds its changes in memory. Readers load it without the lock.
//
// mu guards waiters. A waiter checks revision again under mu before it enters the list, and advance stores revision
// before it takes mu. Therefore either the waiter sees the new revision, or advance sees the waiter: none waits for
// a revision that has come.
type frontier struct {
	revision atomic.Int64
	mu       sync.Mutex
	waiters  []frontierWaiter
}

type frontierWaiter struct {
	revision int64 // the channel is closed when the frontier has reached it
	reached  chan struct{}
}

func (f *frontier) now() int64 { return f.revision.Load() }

// advance moves the frontier and wakes the waiters that it has reached. A revision that is not newer is ignored.
// One goroutine at a time may call it.
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

// reach returns a channel that is closed when the frontier has reached the revision; nil if it has already. A
// caller that stops waiting must call leave.
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

// leave removes a waiter that has stopped waiting. It has no effect if the frontier has reached the waiter's
// revision meanwhile.
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
	// answerTimeout limits a request to etcd, and how long the frontier may lag behind its answer.
	answerTimeout = 10 * time.Second
	// futureTimeout limits the wait for a revision that a client claims to have seen.
	futureTimeout = 3 * time.Second
	// progressAfter is how long the frontier may lag before etcd is asked to report progress. Without that, memory
	// cannot learn of a revision that changed no key below our prefix.
	progressAfter = 10 * time.Millisecond
	progressEvery = 100 * time.Millisecond
	// livenessTimeout is how long a member of etcd may send no data at all before another one is used. A machine that
	// hangs or is cut off keeps its connections for a long time.
	livenessTimeout = time.Second
)

// Frontier returns the revision that memory has reached. It never decreases.
func (s *Store) Frontier() int64 { return s.frontier.now() }

// Revision returns a linearizable revision of etcd that memory has reached. Concurrent callers share one request to
// etcd, and the call returns when the frontier has caught up with the answer.
func (s *Store) Revision(ctx context.Context) (int64, error) {
	revision, err := s.query.next(ctx)
	if err != nil {
		return 0, err
	}
	return revision, s.await(ctx, revision, answerTimeout, ErrUnavailable)
}

// await returns nil when the frontier has reached the revision, or an error that wraps late if that takes longer
// than patience. Meanwhile it deals with the two reasons for a lag: it asks etcd for a progress report, and it
// makes follow replace a watch that is silent.
func (s *Store) await(ctx context.Context, revision int64, patience time.Duration, late error) error {
	reached := s.frontier.reach(revision)
	if reached == nil {
		return nil
	}
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	progress := time.NewTimer(progressAfter)
	defer progress.Stop()
	liveness := time.NewTicker(livenessTimeout)
	defer liveness.Stop()
	before := s.Frontier()
	for {
		select {
		case <-reached:
			return nil
		case <-liveness.C:
			// A revision that only a client claims may not exist, and is no reason to suspect the watch.
			if now := s.Frontier(); now > before || errors.Is(late, ErrFuture) {
				before = now
				continue
			}
			s.suspectWatch()
			continue
		case <-progress.C:
			progress.Reset(progressEvery)
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
			if now >= revision { // both came while this goroutine waited to be scheduled
				return nil
			}
			return fmt.Errorf("%w: memory is at revision %d, not yet at %d", late, now, revision)
		}
	}
}

// ownPatience limits how long a Commit waits for memory. A broken watch must not stop writers.
const ownPatience = 100 * time.Millisecond

// awaitOwn waits until the frontier has reached a revision that this store has written, or until ownPatience is
// over. The commit has succeeded in either case.
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

// suspectWatch makes follow replace a watch that has fallen silent. The channel holds one token, and the call never
// blocks. One token is enough, because follow drops a token that is about the watch before.
func (s *Store) suspectWatch() {
	select {
	case s.suspect <- struct{}{}:
	default:
	}
}

// askRevision requests etcd's revision. A revision below the frontier means that etcd has lost data: memory must not
// serve it.
func (s *Store) askRevision() (int64, error) {
	before := s.Frontier()
	revision, err := s.firstRevision()
	if err != nil {
		return 0, err
	}
	if revision < before {
		return 0, fmt.Errorf("%w: etcd is at revision %d and has been at %d: it lost data", ErrUnavailable,
			revision, before)
	}
	return revision, nil
}

// firstRevision requests etcd's revision, and sends the request once more, to the next member, after each
// livenessTimeout. Requests under way go on meanwhile: an etcd with a slow disk takes longer than livenessTimeout for
// every one. The first revision that arrives is returned.
//
// If a repeated request is answered first, it stores its revision before it cancels ctx. That ends the first request
// with an error, and the stored revision is returned instead. close waits for the repeated requests through flights;
// the Add before AfterFunc keeps flights above zero until either Stop has prevented the function or the function is
// done.
func (s *Store) firstRevision() (int64, error) {
	ctx, cancel := context.WithTimeout(s.ctx, answerTimeout)
	defer cancel()
	var repeated atomic.Int64 // the revision that a repeated request returned
	s.query.flights.Add(1)
	repeat := time.AfterFunc(livenessTimeout, func() {
		defer s.query.flights.Done()
		ticker := time.NewTicker(livenessTimeout)
		defer ticker.Stop()
		for ctx.Err() == nil {
			s.query.flights.Go(func() {
				if revision, err := s.backend.Revision(ctx); err == nil {
					repeated.Store(revision)
					cancel()
				}
			})
			select {
			case <-ticker.C:
			case <-ctx.Done():
			}
		}
	})
	revision, err := s.backend.Revision(ctx)
	if repeat.Stop() {
		s.query.flights.Done()
	}
	if answer := repeated.Load(); err != nil && answer != 0 {
		return answer, nil
	}
	return revision, err
}

// revisionQuery lets concurrent callers share one request for etcd's revision.
//
// An answer is linearizable only for callers that arrived before its request was sent. A caller therefore joins the
// next request, never the one under way. So at most two answers exist at a time: the one of the request under way,
// which run holds, and pending, which gathers the callers for the next one.
//
// mu guards the fields. ask is called without it.
type revisionQuery struct {
	ask func() (int64, error) // set before the first call of next

	mu      sync.Mutex
	asking  bool // run is active: it will take pending
	closed  bool
	pending *queryResult   // the answer to the next request; nil if no caller waits for it
	flights sync.WaitGroup // run and its repeated requests, so that close can wait for them
}

// queryResult is the answer to one request. run writes revision and err before it closes done; callers read them after.
type queryResult struct {
	done     chan struct{}
	revision int64
	err      error
}

// next waits for the answer to the next request. It starts run if that is not active.
func (q *revisionQuery) next(ctx context.Context) (int64, error) {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return 0, errClosed
	}
	if q.pending == nil {
		q.pending = &queryResult{done: make(chan struct{})}
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

// run sends requests, one at a time, as long as callers wait. It takes pending before it sends the request: callers
// that arrive later get a new one. It ends under mu, at the moment when it finds no caller, so the next caller
// starts it again.
func (q *revisionQuery) run() {
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

// close makes later calls of next fail, and waits for the requests under way. Handlers may outlive their server by
// a moment, and call next after close.
func (q *revisionQuery) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.flights.Wait()
}
