package storage

import (
	"context"
	"fmt"
	"time"
)

const (
	// minBackfill is the least number of revisions that a backfill goes back.
	minBackfill = 1024
	// backfillTimeout limits the time that etcd may take for it.
	backfillTimeout = 10 * time.Second
	// weighEvery is the shortest time between two requests for the size of history.
	weighEvery = time.Second
)

// backfill extends the log back to a revision, with the changes that etcd has from before the store began: clients of
// another server, or of this one before it was restarted, go on from where they were. The log never grows beyond its
// usual limits. The error is ErrExpired if it cannot go back as far.
//
// To serve a watch from the past, etcd reads every change since that revision, also of other keys: once for each watch,
// and once more whenever its client does not keep up. So the store reads history once for all its watchers: never more
// revisions than a log may have, one collection at a time, and each time at least twice as many as the last.
//
// The token in backfilling makes concurrent callers wait for each other. A caller that gets it late finds the log
// extended already.
func (c *Collection) backfill(ctx context.Context, from int64) error {
	s := c.store
	select {
	case s.backfilling <- struct{}{}:
		defer func() { <-s.backfilling }()
	case <-ctx.Done():
		return ctx.Err()
	case <-s.ctx.Done():
		return errClosed
	}
	begin, complete := c.logBegin()
	if from >= begin { // another caller has backfilled it meanwhile
		return nil
	}
	now := s.frontier.now()
	if !complete || now-from > int64(s.options.LogEvents) {
		return fmt.Errorf("%w: %d, and memory begins with %d", ErrExpired, from, begin)
	}
	if limit := s.options.BackfillBytes; limit > 0 {
		size, err := s.weighHistory(ctx)
		if err != nil {
			return err
		}
		if size > limit {
			return fmt.Errorf("%w: %d, and memory begins with %d: history takes up to %d bytes, and %d may be read",
				ErrExpired, from, begin, size, limit)
		}
	}
	back := min(max(2*(now-from), minBackfill), int64(s.options.LogEvents))
	b := &backfill{collection: c, from: max(now-back, s.compactor.oldest.Load(), 1), end: begin,
		schema: c.schema.Load(), last: map[string]pastState{}}
	b.begin = b.from
	if err := b.read(); err != nil {
		return err
	}
	return c.prepend(b)
}

// logBegin returns the log's floor, and whether the log has never lost an entry.
func (c *Collection) logBegin() (begin int64, complete bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.log.floor, !c.log.dropped
}

// historyWeight is an upper bound for the size of etcd's history, as it was a moment ago.
type historyWeight struct {
	bytes   int64
	weighed time.Time
}

// weighHistory returns an upper bound for the size of etcd's history. The caller holds the token of Store.backfilling.
func (s *Store) weighHistory(ctx context.Context) (int64, error) {
	if time.Since(s.history.weighed) < weighEvery {
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

// backfill is a part of a collection's history that is read from etcd: the changes after from, up to end.
type backfill struct {
	collection *Collection
	from, end  int64
	schema     *schema
	last       map[string]pastState // of the paths that have been changed so far
	// entries are the changes after begin. begin is later than from if the backfill is broken: the change at begin
	// has no event, because the state before it cannot be read.
	entries []*entry
	begin   int64
	broken  bool
}

// read ends with the store, and not with a request's context: other requests wait for the same history.
func (b *backfill) read() error {
	s := b.collection.store
	ctx, cancel := context.WithTimeout(s.ctx, backfillTimeout)
	batches := s.backend.Watch(ctx, FollowRequest{From: b.begin + 1, Prefix: b.collection.name + "/"})
	defer func() {
		cancel()
		for range batches { // until the backend has released the watch
		}
	}()
	for delivered := b.begin; delivered < b.end; {
		batch, err := s.nextBatch(ctx, batches)
		if err != nil {
			return err
		}
		for _, ch := range batch.Changes {
			if err := b.add(ctx, ch); err != nil {
				return err
			}
		}
		delivered = max(delivered, batch.Revision)
	}
	return nil
}

// nextBatch waits for a batch of a watch over history. If there was no change since its first revision, only a progress
// report shows that.
func (s *Store) nextBatch(ctx context.Context, batches <-chan WatchBatch) (WatchBatch, error) {
	progress := time.NewTimer(progressAfter)
	defer progress.Stop()
	for {
		select {
		case batch, ok := <-batches:
			if !ok {
				return batch, fmt.Errorf("%w: the watch over history ended", ErrUnavailable)
			}
			return batch, batch.Err
		case <-progress.C:
			progress.Reset(progressEvery)
			if err := s.backend.RequestProgress(ctx); err != nil {
				s.options.Log.Debug("cannot request progress of etcd", "err", err)
			}
		case <-ctx.Done():
			return WatchBatch{}, fmt.Errorf("%w: the watch over history: %w", ErrUnavailable, ctx.Err())
		}
	}
}

// pastState is an object at a past revision: nil if there was none, or if its document cannot be read.
type pastState struct {
	object     *Object
	unreadable bool
}

// add makes an entry of a change, unless readers could not see it. The type of the event depends on the state before.
// If that cannot be read, such as after a rotation of keys, the backfill begins again after this change.
func (b *backfill) add(ctx context.Context, ch Change) error {
	if ch.Revision > b.end {
		return nil
	}
	before, found := b.last[ch.Path]
	if !found {
		var err error
		if before, err = b.before(ctx, ch.Path); err != nil {
			return err
		}
	}
	after := b.state(KV{Path: ch.Path, Value: ch.Value, Revision: ch.Revision, Err: ch.Err})
	b.last[ch.Path] = after
	switch {
	case after.unreadable: // watchers get no event for it
	case before.unreadable:
		b.begin, b.entries, b.broken = ch.Revision, nil, true
	case after.object != nil || before.object != nil:
		e := &entry{revision: ch.Revision, object: after.object, previous: before.object}
		b.entries = append(b.entries, e)
	}
	return nil
}

// before reads the state of a path before its first change. A watch of etcd could deliver it with each change (PrevKV),
// but an embedded etcd may panic over such a watch when it is closed.
func (b *backfill) before(ctx context.Context, path string) (pastState, error) {
	result, err := b.collection.store.backend.Range(ctx, RangeRequest{Prefix: path, Revision: b.from, Limit: 1})
	if err != nil || len(result.KVs) == 0 || result.KVs[0].Path != path {
		return pastState{}, err
	}
	return b.state(result.KVs[0]), nil
}

func (b *backfill) state(kv KV) pastState {
	switch {
	case unreadable(kv) != nil:
		return pastState{unreadable: true}
	case kv.Value == nil:
		return pastState{}
	}
	return pastState{object: b.collection.decodeOld(b.schema, kv)}
}

// prepend puts a backfill before the log, as far as there is room for it. The numbers of the present entries stay, so
// that the cursors of watchers stay valid. It fails if the log has dropped entries or was rescanned since the backfill
// began.
func (c *Collection) prepend(b *backfill) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.log.floor != b.end || c.log.dropped || c.schema.Load() != b.schema {
		return fmt.Errorf("%w: the log has changed while history was read", ErrExpired)
	}
	first := c.log.first - uint64(len(b.entries))
	log := newEventLog(&c.store.options, b.begin)
	log.first, log.next = first, first
	for _, e := range b.entries {
		log.append(e)
	}
	for n := c.log.first; n < c.log.next; n++ {
		log.append(c.log.at(n))
	}
	log.dropped = log.dropped || b.broken // in either case, no more history can be read
	c.log = log
	return nil
}
