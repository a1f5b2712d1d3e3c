package storage

import (
	"context"
	"fmt"
	"time"
)

const (
	// shortRecall is how many revisions a recall goes back at least.
	shortRecall = 1024
	// recallTimeout is how long etcd may take for it.
	recallTimeout = 10 * time.Second
	// weighEvery is how often the size of history is looked up at most.
	weighEvery = time.Second
)

// recall makes the log go back to a revision, with what etcd knows of the time before the store began: clients of
// another server, or of this one before it was restarted, go on from where they were. The log becomes no longer than it
// would be, were the store older. The error is ErrExpired if it cannot go back as far.
//
// To serve a watch, etcd reads all that has happened since its first revision, whatever the watch is over: once for
// each watch, and once more whenever its client does not keep up. So history is read by the store, for everybody: never
// more revisions than a log may have, one collection at a time, and each time at least twice as many as the last.
func (c *Collection) recall(ctx context.Context, from int64) error {
	s := c.store
	select {
	case s.recalling <- struct{}{}:
		defer func() { <-s.recalling }()
	case <-ctx.Done():
		return ctx.Err()
	case <-s.ctx.Done():
		return errClosed
	}
	begin, complete := c.logBegin()
	if from >= begin { // somebody else has recalled it meanwhile
		return nil
	}
	now := s.frontier.now()
	if !complete || now-from > int64(s.options.LogEvents) {
		return fmt.Errorf("%w: %d, and memory begins with %d", ErrExpired, from, begin)
	}
	if most := s.options.RecallBytes; most > 0 {
		size, err := s.weighHistory(ctx)
		if err != nil {
			return err
		}
		if size > most {
			return fmt.Errorf("%w: %d, and memory begins with %d: history takes up to %d bytes, and %d may be read",
				ErrExpired, from, begin, size, most)
		}
	}
	back := min(max(2*(now-from), shortRecall), int64(s.options.LogEvents))
	r := &recollection{of: c, begin: max(now-back, s.compactor.oldest.Load()), end: begin, schema: c.schema.Load(),
		last: map[string]*Object{}}
	if err := r.read(); err != nil {
		return err
	}
	return c.prepend(r)
}

// logBegin returns the revision after which the log is complete, and whether it still has all that it ever had.
func (c *Collection) logBegin() (begin int64, complete bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.log.floor, !c.log.dropped
}

// historyWeight is how many bytes etcd's history takes at most, as it was a moment ago.
type historyWeight struct {
	bytes int64
	at    time.Time
}

// weighHistory returns how many bytes etcd's history takes at most. The caller holds the token of Store.recalling.
func (s *Store) weighHistory(ctx context.Context) (int64, error) {
	if time.Since(s.history.at) < weighEvery {
		return s.history.bytes, nil
	}
	status, err := s.backend.Status(ctx)
	if err != nil {
		return 0, err
	}
	size := status.InUse
	s.each(func(c *Collection) {
		c.snapshot().tree.Ascend(func(o *Object) bool {
			size -= int64(len(o.JSON))
			return true
		})
	})
	s.history = historyWeight{size, time.Now()}
	return size, nil
}

// recollection is a part of a collection's history that is read from etcd: the changes after begin, up to end.
type recollection struct {
	of         *Collection
	begin, end int64
	broken     bool // begin is where it cannot be told what happened
	schema     *schema
	entries    []*entry
	last       map[string]*Object // the states of the paths that the entries have led to so far
}

// read ends with the store, and not with a request: others wait for the same.
func (r *recollection) read() error {
	s := r.of.store
	ctx, cancel := context.WithTimeout(s.ctx, recallTimeout)
	batches := s.backend.Watch(ctx, FollowRequest{From: r.begin + 1, Prefix: r.of.name + "/", Previous: true})
	defer func() {
		cancel()
		for range batches { // until the backend has let go of the watch
		}
	}()
	for told := r.begin; told < r.end; {
		batch, err := s.nextBatch(ctx, batches)
		if err != nil {
			return err
		}
		for _, ch := range batch.Changes {
			r.add(ch)
		}
		told = max(told, batch.Revision)
	}
	return nil
}

// nextBatch waits for a batch of a watch over history. If nothing happened since its first revision, only a progress
// report shows it.
func (s *Store) nextBatch(ctx context.Context, batches <-chan WatchBatch) (WatchBatch, error) {
	nudge := time.NewTimer(nudgeAfter)
	defer nudge.Stop()
	for {
		select {
		case batch, ok := <-batches:
			if !ok {
				return batch, fmt.Errorf("%w: the watch over history ended", ErrUnavailable)
			}
			return batch, batch.Err
		case <-nudge.C:
			nudge.Reset(nudgeEvery)
			if err := s.backend.RequestProgress(ctx); err != nil {
				s.options.Log.Debug("could not request progress of etcd", "err", err)
			}
		case <-ctx.Done():
			return WatchBatch{}, fmt.Errorf("%w: the watch over history: %w", ErrUnavailable, ctx.Err())
		}
	}
}

// add makes an entry of a change, unless readers could not see it. Where the state before cannot be read, such as after
// a rotation of keys, the recollection begins anew: which event the change was depends on it.
func (r *recollection) add(ch Change) {
	after := KV{Path: ch.Path, Value: ch.Value, Revision: ch.Revision, Err: ch.Err}
	if ch.Revision > r.end || unreadable(after) != nil {
		return
	}
	if unreadable(ch.Before) != nil {
		r.begin, r.entries, r.broken = ch.Revision, nil, true
		return
	}
	e := &entry{revision: ch.Revision, previous: r.last[ch.Path]}
	if e.previous == nil || e.previous.Revision != ch.Before.Revision {
		e.previous = nil
		if ch.Before.Revision != 0 {
			e.previous = r.of.understandOld(r.schema, ch.Before)
		}
	}
	if ch.Value != nil {
		e.object = r.of.understandOld(r.schema, after)
	}
	r.last[ch.Path] = e.object
	if e.object != nil || e.previous != nil {
		r.entries = append(r.entries, e)
	}
}

// prepend puts a recollection before the log, as far as there is room for it.
func (c *Collection) prepend(r *recollection) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.log.floor != r.end || c.log.dropped || c.schema.Load() != r.schema {
		return fmt.Errorf("%w: the log has changed while history was read", ErrExpired)
	}
	first := c.log.first - uint64(len(r.entries))
	log := eventLog{first: first, next: first, floor: r.begin, maxEvents: c.log.maxEvents, maxBytes: c.log.maxBytes}
	for _, e := range r.entries {
		log.append(e)
	}
	for n := c.log.first; n < c.log.next; n++ {
		log.append(c.log.at(n))
	}
	log.dropped = log.dropped || r.broken // either way, there is nothing more to recall
	c.log = log
	return nil
}
