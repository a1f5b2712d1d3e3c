package storage

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/btree"
)

// Watcher is a cursor in a collection's log. It is for one goroutine.
//
// It reads from the objects of a snapshot, and then from the log; or from the log alone.
type Watcher struct {
	collection *Collection
	scope      Scope
	previous   bool // fill in Event.Previous

	// The collection's lock guards these. While idle, the watcher has returned all events of the log
	// that concern it; the next entry that may concern it sets the cursor and wakes it. Other objects'
	// changes therefore cannot make an idle watcher fall off the log.
	cursor     uint64
	idle       bool
	registered bool

	wake   chan struct{} // holds one token at most
	events []Event       // the batch that Next returned last
	told   int64         // the revision up to which it has returned everything

	state *stateReader

	bookmarkEvery time.Duration
	bookmarkDue   *time.Timer // nil without bookmarks
	bookmarkNow   atomic.Bool // see Store.AskBookmarks
	closed        bool
}

// batchSize is about how many events Next returns; it never splits a revision.
const batchSize = 256

// ring wakes an idle watcher for entry n. The caller holds the collection's lock for writing.
func (w *Watcher) ring(n uint64) {
	if !w.idle {
		return
	}
	w.idle, w.cursor = false, n
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Next blocks until there are events, and returns them in order, at least one and at most a
// few hundred (more only when one revision has more). It ends with ErrExpired when the reader
// has fallen off the tail of the log, ErrUnavailable when the store closes, ctx.Err() when
// ctx does. The slice is valid until the next call.
func (w *Watcher) Next(ctx context.Context) ([]Event, error) {
	clear(w.events)
	w.events = w.events[:0]
	store := w.collection.store
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if store.ctx.Err() != nil || w.closed {
			return nil, errClosed
		}
		if err := w.fill(); err != nil {
			return nil, err
		}
		if len(w.events) > 0 {
			w.addBookmarkIfDue()
			return w.events, nil
		}
		if w.state != nil {
			continue
		}
		if w.bookmarkNow.Load() && w.isIdle() {
			return append(w.events, w.sendBookmark()), nil
		}
		select {
		case <-w.wake:
		case <-w.due():
			return append(w.events, w.sendBookmark()), nil
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-store.ctx.Done():
			return nil, errClosed
		}
	}
}

// Poll is Next without the waiting: it returns what there is, perhaps nothing.
func (w *Watcher) Poll() ([]Event, error) {
	clear(w.events)
	w.events = w.events[:0]
	select {
	case <-w.wake:
	default:
	}
	for {
		if w.collection.store.ctx.Err() != nil || w.closed {
			return nil, errClosed
		}
		if err := w.fill(); err != nil {
			return nil, err
		}
		if len(w.events) > 0 || w.state == nil {
			return w.events, nil
		}
	}
}

// Woken reports whether something has happened since the last Poll that returned nothing. Unlike
// the other methods it may be called by any goroutine at any time.
func (w *Watcher) Woken() bool { return len(w.wake) > 0 }

// fill adds the events there are.
func (w *Watcher) fill() error {
	if w.state != nil {
		w.fillFromState()
		return nil
	}
	return w.fillFromLog()
}

// stateReader walks the snapshot that a watch begins with.
type stateReader struct {
	tree     *btree.BTreeG[*Object]
	revision int64   // of the snapshot
	last     *Object // the last that was visited
	end      bool    // send InitialEventsEnd
}

// beginWithState takes a snapshot and, at the same moment, a place in the log.
func (w *Watcher) beginWithState(end bool) {
	c := w.collection
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.cloneLocked()
	w.state = &stateReader{tree: s.tree, revision: s.last, end: end}
	w.idle = true
	w.register()
}

func (w *Watcher) register() {
	w.collection.alarms.add(w)
	w.registered = true
}

func (w *Watcher) fillFromState() {
	sc := w.collection.schema.Load()
	reader := w.state
	add := func(o *Object) bool {
		if o == reader.last {
			return true
		}
		if len(w.events) == batchSize {
			return false
		}
		reader.last = o
		if w.scope.holds(sc, o) {
			w.events = append(w.events, Event{Type: Added, Object: o, Revision: o.Revision})
		}
		return true
	}
	s := snapshot{tree: reader.tree}
	if reader.last == nil {
		s.ascend(w.scope, "", add)
	} else {
		s.tree.AscendGreaterOrEqual(reader.last, func(o *Object) bool {
			return (w.scope.Namespace == "" || o.Key.Namespace == w.scope.Namespace) && add(o)
		})
	}
	if len(w.events) == batchSize {
		return
	}
	w.state, w.told = nil, reader.revision
	if reader.end {
		w.events = append(w.events, Event{Type: Bookmark, Revision: w.told, InitialEventsEnd: true})
	}
}

// joinLog puts the cursor behind a revision; false if the log no longer reaches back to it.
func (w *Watcher) joinLog(after int64) bool {
	c := w.collection
	c.mu.Lock()
	defer c.mu.Unlock()
	if after < c.log.floor {
		return false
	}
	w.cursor, w.told = c.log.after(after), after
	// Changes that do not concern the watcher must not make it fall off either.
	sc := c.schema.Load()
	for ; w.cursor < c.log.next; w.cursor++ {
		if e := c.log.at(w.cursor); e.concerns(sc, &w.scope) {
			break
		}
	}
	w.idle = w.cursor == c.log.next
	w.register()
	return true
}

// fillFromLog adds the events that concern this watcher, from the cursor on. At the end of the log, the
// watcher becomes idle.
func (w *Watcher) fillFromLog() error {
	c := w.collection
	c.mu.RLock()
	defer c.mu.RUnlock()
	if w.idle {
		w.told = max(w.told, c.reachedLocked())
		return nil
	}
	if w.cursor < c.log.first {
		return fmt.Errorf("watch %s: %w: the watcher was too slow", c.name, ErrExpired)
	}
	sc := c.schema.Load()
	for ; w.cursor < c.log.next; w.cursor++ {
		e := c.log.at(w.cursor)
		if len(w.events) >= batchSize && e.revision != w.told {
			return nil
		}
		w.tell(sc, e)
		w.told = max(w.told, e.revision)
	}
	w.idle = true
	w.told = max(w.told, c.reachedLocked())
	return nil
}

// tell adds this watcher's event for an entry, if it has one.
func (w *Watcher) tell(sc *schema, e *entry) {
	is, was := w.scope.holds(sc, e.object), w.scope.holds(sc, e.previous)
	switch {
	case is && was:
		event := Event{Type: Modified, Object: e.object, Revision: e.revision}
		if w.previous {
			event.Previous = e.asDeleted(sc)
		}
		w.events = append(w.events, event)
	case is:
		w.events = append(w.events, Event{Type: Added, Object: e.object, Revision: e.revision})
	case was:
		w.events = append(w.events, Event{Type: Deleted, Object: e.asDeleted(sc), Revision: e.revision})
	}
}

// Bookmark returns a bookmark at the newest revision up to which this watcher has returned everything:
// 0 amid the initial events, which come in the order of keys.
func (w *Watcher) Bookmark() Event {
	if w.state == nil {
		c := w.collection
		c.mu.RLock()
		if w.idle {
			w.told = max(w.told, c.reachedLocked())
		}
		c.mu.RUnlock()
	}
	return Event{Type: Bookmark, Revision: w.told}
}

// due is the channel of the bookmark timer, nil when bookmarks were not asked for.
func (w *Watcher) due() <-chan time.Time {
	if w.bookmarkDue == nil {
		return nil
	}
	return w.bookmarkDue.C
}

func (w *Watcher) isIdle() bool {
	w.collection.mu.RLock()
	defer w.collection.mu.RUnlock()
	return w.idle
}

func (w *Watcher) sendBookmark() Event {
	w.bookmarkNow.Store(false)
	w.bookmarkDue.Reset(w.bookmarkEvery)
	return w.Bookmark()
}

// addBookmarkIfDue is for watchers that are never idle for long enough. There is none amid the
// initial events: objects come in key order there, and no revision is complete.
func (w *Watcher) addBookmarkIfDue() {
	if w.state != nil {
		return
	}
	select {
	case <-w.due():
		w.events = append(w.events, w.sendBookmark())
	default:
	}
}

// Close releases the cursor. Safe to call twice.
func (w *Watcher) Close() {
	if w.closed {
		return
	}
	w.closed = true
	if w.bookmarkDue != nil {
		w.bookmarkDue.Stop()
	}
	c := w.collection
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.registered {
		c.alarms.remove(w)
	}
}
