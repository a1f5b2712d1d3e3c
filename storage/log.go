package storage

import (
	"sort"
	"sync/atomic"
)

// entry is one change in a collection's log. It is immutable and shared by all watchers.
type entry struct {
	revision int64
	object   *Object // the state after; nil when it was deleted
	previous *Object // the state before; nil when it was created
	// gone caches the previous state with this revision spliced in, for watchers that see the object as
	// deleted or leaving their scope. The first watcher that needs it makes it; see asDeleted.
	gone atomic.Pointer[Object]
}

func (e *entry) key() Key {
	if e.object != nil {
		return e.object.Key
	}
	return e.previous.Key
}

// concerns reports whether the entry may be an event in a scope.
func (e *entry) concerns(sc *schema, s *Scope) bool {
	return e.object != nil && s.covers(sc, e.object) || e.previous != nil && s.covers(sc, e.previous)
}

// entryOverhead is about the memory that an entry takes beside the documents, in bytes.
const entryOverhead = 256

// size returns the memory that is held because of the entry. The state after it is held in any case: by the
// tree or, once it is replaced, by the entry that followed.
func (e *entry) size() int64 {
	if e.previous == nil {
		return entryOverhead
	}
	return int64(len(e.previous.JSON)) + entryOverhead
}

// asDeleted returns the previous state with this revision. Watchers may call it at the same time: all of them get the
// object that was stored first.
func (e *entry) asDeleted(sc *schema) *Object {
	if o := e.gone.Load(); o != nil {
		return o
	}
	o := sc.at(e.previous, e.revision)
	if !e.gone.CompareAndSwap(nil, o) {
		return e.gone.Load()
	}
	return o
}

// eventLog is a ring of the newest entries, in order of revision. An entry's number counts
// from the first ever, so that a cursor stays valid as the ring turns; a cursor below first
// has fallen off. It starts small and doubles, so that a quiet collection takes little memory.
//
// The collection's lock guards it: appending, dropping and replacing the log need the lock for writing.
type eventLog struct {
	ring        []*entry // a power of two long
	first, next uint64   // numbers of the oldest entry, and of the one to come
	bytes       int64
	maxEvents   int
	maxBytes    int64
	// floor is a revision; the log has every change after it.
	floor int64
	// dropped reports that the log has lost entries. If not, it begins with the store, and can be backfilled.
	dropped bool
}

// firstNumber leaves room for the entries of a backfill.
const firstNumber = 1 << 32

func newEventLog(o *Options, floor int64) eventLog {
	return eventLog{first: firstNumber, next: firstNumber, maxEvents: o.LogEvents, maxBytes: o.LogBytes, floor: floor}
}

func (l *eventLog) len() int { return int(l.next - l.first) }

func (l *eventLog) at(number uint64) *entry { return l.ring[number&uint64(len(l.ring)-1)] }

// append adds an entry and returns its number.
func (l *eventLog) append(e *entry) uint64 {
	size := e.size()
	for l.len() > 0 && (l.len() >= l.maxEvents || l.bytes+size > l.maxBytes) {
		l.drop()
	}
	if l.len() == len(l.ring) {
		l.grow()
	}
	number := l.next
	l.ring[number&uint64(len(l.ring)-1)] = e
	l.next++
	l.bytes += size
	return number
}

func (l *eventLog) drop() {
	slot := &l.ring[l.first&uint64(len(l.ring)-1)]
	l.floor, l.dropped = (*slot).revision, true
	l.bytes -= (*slot).size()
	*slot = nil
	l.first++
}

// restart empties the log as of a revision, and returns the number of an entry that is no longer in it: every cursor up
// to now has fallen off.
func (l *eventLog) restart(revision int64) (fallen uint64) {
	fallen = l.first
	clear(l.ring)
	l.next++
	l.first, l.bytes, l.floor, l.dropped = l.next, 0, revision, true
	return fallen
}

func (l *eventLog) grow() {
	ring := make([]*entry, max(16, 2*len(l.ring)))
	for n := l.first; n < l.next; n++ {
		ring[n&uint64(len(ring)-1)] = l.at(n)
	}
	l.ring = ring
}

// after returns the number of the first entry of a later revision.
func (l *eventLog) after(revision int64) uint64 {
	n := sort.Search(l.len(), func(i int) bool { return l.at(l.first+uint64(i)).revision > revision })
	return l.first + uint64(n)
}
