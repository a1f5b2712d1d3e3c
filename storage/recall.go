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
	r := &recollection{of: c, from: max(now-back, s.compactor.oldest.Load(), 1), end: begin,
		schema: c.schema.Load(), last: map[string]pastState{}}
	r.begin = r.from
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

// recollection is a part of a collection's history that is read from etcd: the changes after from, up to end.
type recollection struct {
	of        *Collection
	from, end int64
	schema    *schema
	last      map[string]pastState // of the paths that have been changed so far
	// entries are the changes after begin. That is later than from if it is broken: at begin it cannot be told what
	// happened.
	entries []*entry
	begin   int64
	broken  bool
}

// read ends with the store, and not with a request: others wait for the same.
func (r *recollection) read() error {
	s := r.of.store
	ctx, cancel := context.WithTimeout(s.ctx, recallTimeout)
	batches := s.backend.Watch(ctx, FollowRequest{From: r.begin + 1, Prefix: r.of.name + "/"})
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
			if err := r.add(ctx, ch); err != nil {
				return err
			}
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
				s.options.Log.Debug("cannot request progress of etcd", "err", err)
			}
		case <-ctx.Done():
			return WatchBatch{}, fmt.Errorf("%w: the watch over history: %w", ErrUnavailable, ctx.Err())
		}
	}
}

// pastState is an object at a moment of the past: nil if there was none, or if its document cannot be read.
type pastState struct {
	object     *Object
	unreadable bool
}

// add makes an entry of a change, unless readers could not see it. Where the state before cannot be read, such as after
// a rotation of keys, the recollection begins anew: which event the change was depends on it.
func (r *recollection) add(ctx context.Context, ch Change) error {
	if ch.Revision > r.end {
		return nil
	}
	before, known := r.last[ch.Path]
	if !known {
		var err error
		if before, err = r.before(ctx, ch.Path); err != nil {
			return err
		}
	}
	after := r.state(KV{Path: ch.Path, Value: ch.Value, Revision: ch.Revision, Err: ch.Err})
	r.last[ch.Path] = after
	switch {
	case after.unreadable: // which readers are not told
	case before.unreadable:
		r.begin, r.entries, r.broken = ch.Revision, nil, true
	case after.object != nil || before.object != nil:
		e := &entry{revision: ch.Revision, object: after.object, previous: before.object}
		r.entries = append(r.entries, e)
	}
	return nil
}

// before reads what a path had before its first change. A watch of etcd would tell it for each, but an embedded etcd
// may panic over such a watch when it is closed.
func (r *recollection) before(ctx context.Context, path string) (pastState, error) {
	result, err := r.of.store.backend.Range(ctx, RangeRequest{Prefix: path, Revision: r.from, Limit: 1})
	if err != nil || len(result.KVs) == 0 || result.KVs[0].Path != path {
		return pastState{}, err
	}
	return r.state(result.KVs[0]), nil
}

func (r *recollection) state(kv KV) pastState {
	switch {
	case unreadable(kv) != nil:
		return pastState{unreadable: true}
	case kv.Value == nil:
		return pastState{}
	}
	return pastState{object: r.of.understandOld(r.schema, kv)}
}

// prepend puts a recollection before the log, as far as there is room for it.
func (c *Collection) prepend(r *recollection) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.log.floor != r.end || c.log.dropped || c.schema.Load() != r.schema {
		return fmt.Errorf("%w: the log has changed while history was read", ErrExpired)
	}
	first := c.log.first - uint64(len(r.entries))
	log := newEventLog(&c.store.options, r.begin)
	log.first, log.next = first, first
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
