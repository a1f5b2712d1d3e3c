package workqueue

import (
	"container/heap"
	"time"

	"k8s.io/utils/clock"
)

// later holds keys that wait for a time. It has one timer, for the earliest time. It has no lock: the queue's mutex
// guards it. A queue has one for each kind of delay, as they differ in their clocks.
//
// Invariants: waiting and entries contain the same entries, each key once. After arm, a timer runs if and only if a
// key waits; it fires at the earliest time, or at most recheck later than now.
type later[K comparable] struct {
	clock clock.WithDelayedExecution // of all times in here
	// recheck limits the timer's duration, so that the clock is read again after it. A timer measures a duration,
	// but a wall clock may be set while it runs. 0 is no limit.
	recheck time.Duration
	waiting heapOf[K]       // by time: waiting[0] is the earliest
	entries map[K]*entry[K] // by key
	timer   clock.Timer     // nil if there is none; a timer that has fired stays until disarm
	armed   time.Time       // the time of the timer; zero without one
}

type entry[K comparable] struct {
	key    K
	moment time.Time
	index  int // in waiting, kept by Swap and Push
}

func newLater[K comparable](c clock.WithDelayedExecution) *later[K] {
	return &later[K]{clock: c, entries: map[K]*entry[K]{}}
}

// add makes a key wait for a time. If it waits already, the earlier time counts. add reports whether the key's time
// has changed: the caller must then call arm, since the timer may be too late.
func (l *later[K]) add(key K, moment time.Time) bool {
	e := l.entries[key]
	switch {
	case e == nil:
		e = &entry[K]{key: key, moment: moment}
		l.entries[key] = e
		heap.Push(&l.waiting, e)
	case moment.Before(e.moment):
		e.moment = moment
		heap.Fix(&l.waiting, e.index)
	default:
		return false
	}
	return true
}

// due returns the earliest key if its time comes within a duration from now.
func (l *later[K]) due(within time.Duration) (key K, ok bool) {
	if len(l.waiting) == 0 || l.waiting[0].moment.Sub(l.clock.Now()) > within {
		return key, false
	}
	return l.waiting[0].key, true
}

// arm removes and returns all keys that are due, and sets the timer to call ring at the next time. A timer that is
// already set for that time is left alone, so repeated calls are cheap. ring may be called early, by a recheck,
// and while another goroutine holds the lock. It must call disarm and arm again, both under the lock.
func (l *later[K]) arm(ring func()) (due []K) {
	for {
		for key, ok := l.due(0); ok; key, ok = l.due(0) {
			heap.Pop(&l.waiting)
			delete(l.entries, key)
			due = append(due, key)
		}
		if len(l.waiting) == 0 {
			l.disarm()
			return due
		}
		next := l.waiting[0].moment
		if !next.Equal(l.armed) {
			l.disarm()
			wait := next.Sub(l.clock.Now())
			if l.recheck > 0 {
				wait = min(wait, l.recheck)
			}
			l.armed, l.timer = next, l.clock.AfterFunc(wait, ring)
		}
		if l.clock.Now().Before(next) {
			return due
		}
		// The clock moved past next before the timer existed, so the timer may never fire: next is due now.
	}
}

// disarm stops and forgets the timer. The next arm sets a new one, even for the same time.
func (l *later[K]) disarm() {
	if l.timer != nil {
		l.timer.Stop()
	}
	l.armed, l.timer = time.Time{}, nil
}

// stop forgets all keys. The queue calls neither add nor arm afterwards.
func (l *later[K]) stop() {
	l.disarm()
	l.waiting, l.entries = nil, nil
}

// heapOf is a container/heap of entries by their times.
type heapOf[K comparable] []*entry[K]

func (h heapOf[K]) Len() int           { return len(h) }
func (h heapOf[K]) Less(i, j int) bool { return h[i].moment.Before(h[j].moment) }
func (h heapOf[K]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *heapOf[K]) Push(x any) {
	e := x.(*entry[K])
	e.index = len(*h)
	*h = append(*h, e)
}
func (h *heapOf[K]) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return e
}
