package storage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coxswain-dev/coxswain/internal/backoff"
)

// change is a decoded Change: a key and, unless deleted, its object.
type change struct {
	key      Key
	revision int64
	object   *Object // nil: deleted
	schema   *schema // that object was made with
	damage   error   // why the document cannot be read
}

// decode scans a document. A document that is not an object's is logged and left out.
func (s *Store) decode(kv KV) (change, bool) {
	key, err := ParseKey(kv.Path)
	if err != nil {
		s.options.Log.Warn("left out of memory: unknown path in etcd", "path", kv.Path, "revision", kv.Revision)
		return change{}, false
	}
	c := s.collection(key.Collection)
	key.Collection = c.name
	ch := change{key: key, revision: kv.Revision, schema: c.schema.Load()}
	if ch.damage = unreadable(kv); ch.damage != nil {
		c.logDamage(ch)
		return ch, true
	}
	if kv.Value == nil {
		return ch, true
	}
	if ch.object, err = ch.schema.object(key, kv.Revision, kv.Value); err != nil {
		// An object no longer exists for readers if its document was overwritten with garbage.
		s.options.Log.Error("cannot decode a document in etcd: it is left out of memory", "err", err)
	}
	return ch, true
}

// load adds one document of the first snapshot.
func (s *Store) load(kv KV) {
	if ch, ok := s.decode(kv); ok && (ch.object != nil || ch.damage != nil) {
		s.collection(ch.key.Collection).load(ch)
	}
}

// readAll passes every document of one revision to f, page by page, and returns the revision.
func (s *Store) readAll(ctx context.Context, f func(KV)) (int64, error) {
	r := RangeRequest{Limit: openPage}
	for {
		page, err := s.backend.Range(ctx, r)
		if err != nil {
			return 0, err
		}
		if r.Revision == 0 {
			r.Revision = page.Revision
		}
		for _, kv := range page.KVs {
			f(kv)
		}
		if !page.More || len(page.KVs) == 0 {
			return r.Revision, nil
		}
		r.Start = page.KVs[len(page.KVs)-1].Path + "\x00"
	}
}

// A watch that broke is opened again after retryMin, then after pauses that double up to retryMax.
const (
	retryMin = 50 * time.Millisecond
	retryMax = 5 * time.Second
)

// follow keeps memory in step with etcd until the store is closed. Its goroutine is the only one that applies changes
// and advances the frontier once the store is open.
func (s *Store) follow() {
	pause := backoff.Doubling(retryMin, retryMax)
	for {
		before := s.frontier.now()
		err := s.followOnce()
		if s.ctx.Err() != nil {
			return
		}
		s.lastErr.Store(&err)
		s.options.Log.Warn("failed to watch etcd, will retry", "frontier", s.frontier.now(), "err", err)
		if errors.Is(err, ErrExpired) {
			if err = s.resync(); err == nil {
				continue
			}
			s.lastErr.Store(&err)
		}
		if s.frontier.now() > before {
			pause = backoff.Doubling(retryMin, retryMax)
		}
		select {
		case <-time.After(pause.Step()):
		case <-s.ctx.Done():
			return
		}
	}
}

// followOnce applies the changes of one watch until it ends, and returns the reason.
func (s *Store) followOnce() error {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	select {
	case <-s.suspect: // it was about the watch before
	default:
	}
	batches := s.backend.Watch(ctx, FollowRequest{From: s.frontier.now() + 1})
	defer func() {
		cancel()
		for range batches { // until the backend has released the watch
		}
	}()
	for {
		select {
		case batch, ok := <-batches:
			s.followedOnce.Do(func() { close(s.followed) })
			if !ok {
				return fmt.Errorf("%w: the watch ended", ErrUnavailable)
			}
			if batch.Err != nil {
				return batch.Err
			}
			s.lastErr.Store(nil)
			s.apply(batch)
		case <-s.suspect:
			return fmt.Errorf("%w: the watch fell silent", ErrUnavailable)
		}
	}
}

// apply moves memory over one batch, a whole revision at a time. The handover is emptied before the frontier advances:
// see handover.give.
func (s *Store) apply(batch WatchBatch) {
	changes := make([]change, 0, len(batch.Changes))
	own := s.handover.take(batch.Revision)
	for _, c := range batch.Changes {
		ch, ok := find(own, &c)
		if !ok {
			ch, ok = s.decode(KV{Path: c.Path, Value: c.Value, Revision: c.Revision, Err: c.Err})
		}
		if ok {
			changes = append(changes, ch)
			s.collection(ch.key.Collection).received.Add(1)
		}
	}
	s.applyChanges(changes)
	s.frontier.advance(batch.Revision)
}

// applyChanges applies changes that are sorted by revision. The part of one revision that
// falls into one collection is applied under one lock, so that no reader sees half of it. The frontier advances after
// the last part of a revision: a consistent read of several collections sees all of a commit.
func (s *Store) applyChanges(changes []change) {
	for len(changes) > 0 {
		n := 1
		for n < len(changes) && changes[n].revision == changes[0].revision {
			n++
		}
		revision := changes[:n]
		if n > 1 {
			slices.SortStableFunc(revision, func(a, b change) int {
				return strings.Compare(a.key.Collection, b.key.Collection)
			})
		}
		for len(revision) > 0 {
			m := 1
			for m < len(revision) && revision[m].key.Collection == revision[0].key.Collection {
				m++
			}
			s.collection(revision[0].key.Collection).apply(revision[:m])
			revision = revision[m:]
		}
		s.frontier.advance(changes[0].revision)
		changes = changes[n:]
	}
}

// resync catches up after the watch's revision was compacted: it reads everything, and applies the difference to
// memory as events. The revision of a deletion is unknown then. Its event gets the revision of the read, because the
// object was certainly gone by that time.
func (s *Store) resync() error {
	var changes []change
	seen := map[string]map[Key]struct{}{}
	revision, err := s.readAll(s.ctx, func(kv KV) {
		key, err := ParseKey(kv.Path)
		if err != nil {
			return
		}
		c := s.collection(key.Collection)
		key.Collection = c.name
		if seen[c.name] == nil {
			seen[c.name] = map[Key]struct{}{}
		}
		seen[c.name][key] = struct{}{}
		old, damaged := c.get(key.Namespace, key.Name), c.damagedAt(key)
		if old != nil && old.Revision == kv.Revision || damaged == kv.Revision {
			return
		}
		ch, ok := s.decode(kv)
		if !ok || ch.object == nil && ch.damage == nil && old == nil && damaged == 0 {
			return
		}
		if old != nil && ch.object != nil && old.UID != ch.object.UID {
			// Another object of the same name: the old one was deleted some time before.
			changes = append(changes, change{key: key, revision: kv.Revision - 1, schema: ch.schema})
		}
		changes = append(changes, ch)
	})
	if err != nil {
		return fmt.Errorf("read everything again: %w", err)
	}
	s.each(func(c *Collection) {
		for _, key := range c.keys() {
			if _, ok := seen[c.name][key]; !ok {
				changes = append(changes, change{key: key, revision: revision, schema: c.schema.Load()})
			}
		}
	})
	slices.SortStableFunc(changes, func(a, b change) int { return int(a.revision - b.revision) })
	s.applyChanges(changes)
	s.frontier.advance(revision)
	return nil
}
