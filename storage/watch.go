package storage

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// EventType is the type of an Event.
type EventType uint8

// Event types as in watch.EventType. A change that moves an object into or out of the
// watcher's scope is Added or Deleted.
const (
	Added EventType = iota
	Modified
	Deleted
	Bookmark
)

// String returns the type as the API spells it.
func (t EventType) String() string {
	return [...]string{"ADDED", "MODIFIED", "DELETED", "BOOKMARK"}[t]
}

// Event is one change. Deleted events carry the last state with the deletion's revision as
// resourceVersion. Bookmarks have a nil Object and only Revision.
type Event struct {
	Type     EventType
	Object   *Object
	Revision int64
	// InitialEventsEnd marks the bookmark that ends the initial events (KEP-3157).
	InitialEventsEnd bool
	// Previous is, with WatchRequest.Previous, the state before a Modified event, as a Deleted one would carry it.
	Previous *Object
}

// WatchRequest opens a watch.
type WatchRequest struct {
	Scope Scope
	// From is a revision: events after it are sent. 0: begin with Added events for all
	// objects in memory, then go on from there.
	From int64
	// InitialEvents asks for Added events of all objects at a state not older than From
	// (consistent when From is 0 and Any is false), then a bookmark with InitialEventsEnd.
	InitialEvents bool
	Any           bool
	// Bookmarks asks for a Bookmark whenever BookmarkEvery passed without one (default 1 m).
	Bookmarks     bool
	BookmarkEvery time.Duration
	// Previous asks for Event.Previous.
	Previous bool
}

const defaultBookmarkEvery = time.Minute

// Signal leaves a token in a channel with room for one whenever objects of the scope have changed. It returns when ctx
// ends or the store closes.
func (c *Collection) Signal(ctx context.Context, within Scope, changed chan<- struct{}) {
	for ctx.Err() == nil {
		watcher, err := c.Watch(ctx, WatchRequest{Scope: within, Any: true})
		if err != nil {
			return // the store has closed
		}
		for err == nil {
			if _, err = watcher.Next(ctx); err == nil {
				select {
				case changed <- struct{}{}:
				default:
				}
			}
		}
		watcher.Close()
		if errors.Is(err, ErrUnavailable) {
			return
		}
	}
}

// Watch opens a watch. It returns ErrExpired if From is older than the log, and cannot be backfilled. The caller must
// close the Watcher.
func (c *Collection) Watch(ctx context.Context, r WatchRequest) (*Watcher, error) {
	w, err := c.watch(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", c.name, err)
	}
	return w, nil
}

func (c *Collection) watch(ctx context.Context, r WatchRequest) (*Watcher, error) {
	if c.store.ctx.Err() != nil {
		return nil, errClosed
	}
	switch {
	case r.From == 0 && (r.Any || !r.InitialEvents):
	case r.From == 0:
		if _, err := c.store.Revision(ctx); err != nil {
			return nil, err
		}
	default:
		if err := c.store.await(ctx, r.From, futureTimeout, ErrFuture); err != nil {
			return nil, err
		}
	}
	w := &Watcher{collection: c, scope: r.Scope, previous: r.Previous, wake: make(chan struct{}, 1)}
	if r.Bookmarks {
		w.bookmarkEvery = r.BookmarkEvery
		if w.bookmarkEvery <= 0 {
			w.bookmarkEvery = defaultBookmarkEvery
		}
		w.bookmarkDue = time.NewTimer(w.bookmarkEvery)
	}
	if r.From == 0 || r.InitialEvents {
		w.beginWithState(r.InitialEvents)
		return w, nil
	}
	err := c.store.past(ctx, &r.Scope, r.From)
	if err == nil {
		err = c.afterGap(r.From)
	}
	if err != nil {
		w.Close()
		return nil, err
	}
	if w.joinLog(r.From) {
		return w, nil
	}
	err = c.backfill(ctx, r.From)
	if err == nil && !w.joinLog(r.From) {
		err = fmt.Errorf("%w: %d, and memory begins later", ErrExpired, r.From)
	}
	if err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

// AskBookmarks makes every open watch with bookmarks send one now, after the events before it. Clients then know
// that they have seen everything that the store holds at this moment.
func (s *Store) AskBookmarks() {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, c := range s.collections {
		c.mu.RLock()
		c.alarms.askBookmarks()
		c.mu.RUnlock()
	}
}

func (a *alarms) askBookmarks() {
	a.all.askBookmarks()
	for _, sets := range []map[string]watcherSet{a.byNamespace, a.byIndex} {
		for _, ws := range sets {
			ws.askBookmarks()
		}
	}
	for _, ws := range a.byName {
		ws.askBookmarks()
	}
}

func (ws watcherSet) askBookmarks() {
	for w := range ws {
		if w.bookmarkDue == nil {
			continue
		}
		w.bookmarkNow.Store(true)
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

// alarms index the watchers by the changes that would concern them, so that a change wakes no others. Each watcher is
// in one set, by the most selective part of its scope. The collection's lock guards the sets: add, remove and notify
// need it for writing, askBookmarks for reading.
type alarms struct {
	all         watcherSet
	byNamespace map[string]watcherSet
	byName      map[objectName]watcherSet
	byIndex     map[string]watcherSet
}

type watcherSet map[*Watcher]struct{}

type objectName struct{ namespace, name string }

func (a *alarms) add(w *Watcher) {
	switch s := w.scope; {
	case s.IndexValue != "":
		put(&a.byIndex, s.IndexValue, w)
	case s.Name != "" && s.Namespace != "":
		put(&a.byName, objectName{s.Namespace, s.Name}, w)
	case s.Name != "":
		put(&a.byName, objectName{"", s.Name}, w)
	case s.Namespace != "":
		put(&a.byNamespace, s.Namespace, w)
	default:
		if a.all == nil {
			a.all = watcherSet{}
		}
		a.all[w] = struct{}{}
	}
}

func (a *alarms) remove(w *Watcher) {
	switch s := w.scope; {
	case s.IndexValue != "":
		drop(a.byIndex, s.IndexValue, w)
	case s.Name != "" && s.Namespace != "":
		drop(a.byName, objectName{s.Namespace, s.Name}, w)
	case s.Name != "":
		drop(a.byName, objectName{"", s.Name}, w)
	case s.Namespace != "":
		drop(a.byNamespace, s.Namespace, w)
	default:
		delete(a.all, w)
	}
}

func put[K comparable](m *map[K]watcherSet, key K, w *Watcher) {
	if *m == nil {
		*m = map[K]watcherSet{}
	}
	if (*m)[key] == nil {
		(*m)[key] = watcherSet{}
	}
	(*m)[key][w] = struct{}{}
}

func drop[K comparable](m map[K]watcherSet, key K, w *Watcher) {
	delete(m[key], w)
	if len(m[key]) == 0 {
		delete(m, key)
	}
}

// notify wakes the watchers that entry number n may concern.
func (a *alarms) notify(sc *schema, e *entry, n uint64) {
	a.all.notify(n)
	key := e.key()
	if len(a.byNamespace) > 0 {
		a.byNamespace[key.Namespace].notify(n)
	}
	if len(a.byName) > 0 {
		a.byName[objectName{key.Namespace, key.Name}].notify(n)
		if key.Namespace != "" {
			a.byName[objectName{"", key.Name}].notify(n)
		}
	}
	if len(a.byIndex) == 0 {
		return
	}
	now, isNow := sc.indexValue(e.object)
	was, wasThen := sc.indexValue(e.previous)
	if isNow {
		a.byIndex[now].notify(n)
	}
	if wasThen && was != now {
		a.byIndex[was].notify(n)
	}
}

// notifyAll wakes every watcher for entry n.
func (a *alarms) notifyAll(n uint64) {
	a.all.notify(n)
	for _, sets := range []map[string]watcherSet{a.byNamespace, a.byIndex} {
		for _, ws := range sets {
			ws.notify(n)
		}
	}
	for _, ws := range a.byName {
		ws.notify(n)
	}
}

func (ws watcherSet) notify(n uint64) {
	for w := range ws {
		w.notify(n)
	}
}
