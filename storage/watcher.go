package storage

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/btree"
)

// Watcher is a cursor in a collection's log. It first returns the objects of a snapshot, if the watch asked for the
// state, and then the entries of the log.
//
// # Concurrency
//
// One goroutine, the owner, calls all methods except Woken and notify. The goroutine that applies etcd's watch calls
// notify when it appends an entry. The two meet in cursor and idle, under the collection's lock:
//
//   - The owner reads and writes them with the lock held, for reading at least. That suffices, because the other side
//     holds the lock for writing, and there is only one owner.
//   - notify runs with the lock held for writing, and changes them only if the watcher is idle.
//
// A watcher is in one of three states. With state set, it walks the snapshot; as if it were idle, the first entry
// after the snapshot that concerns it sets cursor. Not idle, it has entries to read: all from cursor on. Idle, it has
// returned everything that concerns it up to the end of the log, and cursor has no meaning. An idle watcher cannot fall
// off the log, no matter how many changes to other objects pass: the next entry that may concern it sets cursor to
// itself.
type Watcher struct {
	collection *Collection
	scope      Scope // immutable
	previous   bool  // fill in Event.Previous

	// The collection's lock guards these; see above. registered is set once the watcher is in the collection's
	// alarms, so that Close can remove it.
	cursor     uint64
	idle       bool
	registered bool

	// wake holds one token at most. notify and AskBookmarks put it in without waiting, and the owner takes it out. A
	// token is a hint and never the state itself: the owner looks at the log after it has taken one, and a token
	// may be left over from entries that it has read already.
	wake   chan struct{}
	events []Event // the batch that Next returned last; reused by the next call
	// delivered is a revision: the watcher has returned every event up to it that concerns it. It never
	// decreases. While state is set it is 0, since objects come in the order of keys and no revision is complete.
	delivered int64

	state *stateReader // the rest of the snapshot; nil when it has been walked

	bookmarkEvery time.Duration
	bookmarkDue   *time.Timer // runs every bookmarkEvery; nil without bookmarks
	bookmarkNow   atomic.Bool // set by Store.AskBookmarks, from any goroutine
	closed        bool        // only the owner uses it
}

// batchSize is about the number of events that Next returns. It never splits a revision.
const batchSize = 256

// notify makes an idle watcher continue at entry n, and wakes it. If the watcher is not idle, its cursor is at n or
// before, and it will read the entry anyway. The caller holds the collection's lock for writing.
func (w *Watcher) notify(n uint64) {
	if !w.idle {
		return
	}
	w.idle, w.cursor = false, n
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Next blocks until there are events, and returns them in order: at least one, and at most a few hundred (more only
// if one revision has more). It returns ErrExpired if the watcher has fallen off the tail of the log,
// ErrUnavailable if the store closes, and ctx.Err() if ctx ends. The slice is valid until the next call.
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
			// The whole snapshot may be out of scope: continue with its rest, or with the log.
			continue
		}
		if w.bookmarkNow.Load() && w.isIdle() {
			// An idle watcher has returned all events, so that the bookmark comes after them. A watcher that is not
			// idle here was woken since fill: it takes its events first, and bookmarkNow stays set.
			return append(w.events, w.sendBookmark()), nil
		}
		select {
		// The order is safe: if an entry came after fill, notify has left a token and the first case is ready.
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

// Poll does the same as Next without waiting: it returns the events that there are, perhaps none. It takes the token of
// wake first and reads afterwards, so that an entry which comes in between leaves a token for the next call.
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

// Woken reports whether entries or a request for bookmarks came since the last Poll that returned no events. Unlike
// the other methods it may be called by any goroutine at any time.
func (w *Watcher) Woken() bool { return len(w.wake) > 0 }

// fill adds the next events to w.events, if there are any.
func (w *Watcher) fill() error {
	if w.state != nil {
		w.fillFromState()
		return nil
	}
	return w.fillFromLog()
}

// stateReader walks the snapshot that a watch begins with. The tree is immutable.
type stateReader struct {
	tree     *btree.BTreeG[*Object]
	revision int64   // the snapshot's revision: the log continues after it
	last     *Object // the last object that was visited, in scope or not; nil at the beginning
	end      bool    // send InitialEventsEnd after the last object
}

// beginWithState takes a snapshot and, under the same lock, registers the watcher as idle. No change is lost or
// repeated: each one is either in the snapshot, or notifies the watcher.
func (w *Watcher) beginWithState(end bool) {
	c := w.collection
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.cloneLocked()
	w.state = &stateReader{tree: s.tree, revision: s.last, end: end}
	w.idle = true
	w.register()
}

// register adds the watcher to the collection's alarms. The caller holds the collection's lock for writing.
func (w *Watcher) register() {
	w.collection.alarms.add(w)
	w.registered = true
}

// fillFromState adds the next objects of the snapshot, up to batchSize, and continues after the last visited one.
// At the end of the snapshot the watcher changes over to the log.
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
	w.state, w.delivered = nil, reader.revision
	if reader.end {
		w.events = append(w.events, Event{Type: Bookmark, Revision: w.delivered, InitialEventsEnd: true})
	}
}

// joinLog sets the cursor behind a revision, and registers the watcher under the same lock, so that it misses no
// entry. It reports false if the log no longer reaches back to the revision.
func (w *Watcher) joinLog(after int64) bool {
	c := w.collection
	c.mu.Lock()
	defer c.mu.Unlock()
	if after < c.log.floor {
		return false
	}
	w.cursor, w.delivered = c.log.after(after), after
	// Skip the entries that do not concern the watcher, so that they cannot make it fall off the log.
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

// fillFromLog adds the events that concern this watcher, from the cursor on, until the batch is full at the end of
// a revision. At the end of the log the watcher becomes idle. This happens under the lock that appends entries need
// for writing: an entry is either read here, or notifies the idle watcher.
func (w *Watcher) fillFromLog() error {
	c := w.collection
	c.mu.RLock()
	defer c.mu.RUnlock()
	if w.idle {
		w.delivered = max(w.delivered, c.reachedLocked())
		// No entry that concerns the watcher is missing, so it has the collection's revision.
		return nil
	}
	if w.cursor < c.log.first {
		return fmt.Errorf("watch %s: %w: the watcher was too slow", c.name, ErrExpired)
	}
	sc := c.schema.Load()
	for ; w.cursor < c.log.next; w.cursor++ {
		e := c.log.at(w.cursor)
		if len(w.events) >= batchSize && e.revision != w.delivered {
			return nil
		}
		w.deliver(sc, e)
		w.delivered = max(w.delivered, e.revision)
	}
	w.idle = true
	w.delivered = max(w.delivered, c.reachedLocked())
	return nil
}

// deliver adds this watcher's event for an entry, if the object was or is in scope. An object that leaves the scope
// is a deletion for the watcher, and one that enters it a creation.
func (w *Watcher) deliver(sc *schema, e *entry) {
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

// Bookmark returns a bookmark with the latest possible revision: the watcher has returned every event up to it that
// concerns it. The revision is 0 among the initial events, which come in the order of keys.
func (w *Watcher) Bookmark() Event {
	if w.state == nil {
		c := w.collection
		c.mu.RLock()
		if w.idle {
			w.delivered = max(w.delivered, c.reachedLocked())
		}
		c.mu.RUnlock()
	}
	return Event{Type: Bookmark, Revision: w.delivered}
}

// due returns the channel of the bookmark timer; nil, which is never ready, without bookmarks.
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

// sendBookmark returns a bookmark, and restarts the timer.
func (w *Watcher) sendBookmark() Event {
	w.bookmarkNow.Store(false)
	w.bookmarkDue.Reset(w.bookmarkEvery)
	return w.Bookmark()
}

// addBookmarkIfDue adds a bookmark to a batch if the timer has fired, for watchers that are never idle for long
// enough. There is none among the initial events: objects come in the order of keys there, and no revision is
// complete.
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

// Close removes the watcher from the collection's alarms. notify is not called after that. The owner must call Close;
// it is safe to call twice.
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
