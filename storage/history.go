package storage

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// past returns nil if the state at a revision, and the events after it, may be read.
func (s *Store) past(ctx context.Context, scope *Scope, revision int64) error {
	if oldest := s.compactor.oldest.Load(); revision < oldest {
		return fmt.Errorf("%w: %d, and history begins with %d", ErrExpired, revision, oldest)
	}
	if scope.Past == nil {
		return nil
	}
	return scope.Past(ctx, revision)
}

// SameSince is nil if an object has been the same one, by its UID, ever since a revision, or if there
// has been none of that name all the time. It is ErrExpired otherwise, or if the history is gone.
func (c *Collection) SameSince(ctx context.Context, namespace, name string, revision int64) error {
	key := Key{Collection: c.name, Namespace: namespace, Name: name}
	now, same, known := c.remembered(key, revision)
	if !known && now != nil {
		then, err := c.getExactly(ctx, key, revision)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
		same = err == nil && then.UID == now.UID
	}
	if !same {
		return fmt.Errorf("%w: %s was another or none at %d", ErrExpired, key, revision)
	}
	return nil
}

// remembered returns the present object of a key, nil if there is none, and whether it is the same that
// existed at a revision, as far as memory knows.
func (c *Collection) remembered(key Key, revision int64) (now *Object, same, known bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	now, _ = c.tree.Get(&Object{Key: key})
	if revision >= c.revision || now != nil && revision >= now.Revision {
		return now, true, true
	}
	if revision < c.log.floor {
		return now, false, false
	}
	for n := c.log.after(revision); n < c.log.next; n++ {
		if e := c.log.at(n); e.key() == key {
			return now, now != nil && e.previous != nil && e.previous.UID == now.UID, true
		}
	}
	return now, true, true
}

// historyReader is a watch of etcd's own, for one watcher that asks for events from before
// the log. It lasts until it has caught up with the log.
type historyReader struct {
	batches <-chan WatchBatch
	cancel  context.CancelFunc
}

// beginWithHistory opens the private watch. etcd reports only after opening a watch that its revision
// is compacted; a read at the same revision fails at once.
func (w *Watcher) beginWithHistory(ctx context.Context, after int64) error {
	c := w.collection
	prefix := c.name + "/"
	if _, err := c.store.backend.Range(ctx, RangeRequest{Prefix: prefix, Revision: after, Limit: 1}); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(c.store.ctx)
	w.history = &historyReader{
		batches: c.store.backend.Watch(ctx, FollowRequest{From: after + 1, Prefix: prefix, Previous: true}),
		cancel:  cancel,
	}
	w.told = after
	return nil
}

func (w *Watcher) endHistory() {
	if w.history == nil {
		return
	}
	w.history.cancel()
	for range w.history.batches { // until the backend has let go of the watch
	}
	w.history = nil
}

// fillFromHistory waits for one batch, delivers it, and moves on to the log if that is complete from
// there on.
func (w *Watcher) fillFromHistory(ctx context.Context) error {
	batch, err := w.history.next(ctx, w.collection.store)
	if err != nil {
		return err
	}
	if batch.Err != nil {
		return fmt.Errorf("watch %s: %w", w.collection.name, batch.Err)
	}
	sc := w.collection.schema.Load()
	for _, c := range batch.Changes {
		e, err := w.collection.remember(sc, c)
		if err != nil {
			return err
		}
		if e != nil {
			w.tell(sc, e)
		}
	}
	w.told = max(w.told, batch.Revision)
	if w.joinLog(w.told) {
		w.endHistory()
	}
	return nil
}

// next waits for a batch. If nothing happened between the revision asked for and the log, only a
// progress report shows it.
func (h *historyReader) next(ctx context.Context, s *Store) (WatchBatch, error) {
	nudge := time.NewTimer(nudgeAfter)
	defer nudge.Stop()
	for {
		select {
		case batch, ok := <-h.batches:
			if !ok {
				return batch, fmt.Errorf("%w: the watch over history ended", ErrUnavailable)
			}
			return batch, nil
		case <-nudge.C:
			nudge.Reset(nudgeEvery)
			if err := s.backend.RequestProgress(s.ctx); err != nil {
				s.options.Log.Debug("could not request progress of etcd", "err", err)
			}
		case <-ctx.Done():
			return WatchBatch{}, ctx.Err()
		case <-s.ctx.Done():
			return WatchBatch{}, errClosed
		}
	}
}

// remember makes an entry of a change in etcd's history, nil if readers could not see it. It is ErrExpired if the state
// before cannot be read, such as after a rotation of keys: which event the change was depends on it.
func (c *Collection) remember(sc *schema, ch Change) (*entry, error) {
	e := &entry{revision: ch.Revision}
	after := KV{Path: ch.Path, Value: ch.Value, Revision: ch.Revision, Err: ch.Err}
	if unreadable(after) != nil {
		return nil, nil
	}
	if err := unreadable(ch.Before); err != nil {
		return nil, fmt.Errorf("%w: %s before %d: %w", ErrExpired, ch.Path, ch.Revision, err)
	}
	if ch.Value != nil {
		e.object = c.understandOld(sc, after)
	}
	if ch.Before.Revision != 0 {
		e.previous = c.understandOld(sc, ch.Before)
	}
	if e.object == nil && e.previous == nil {
		return nil, nil
	}
	return e, nil
}
