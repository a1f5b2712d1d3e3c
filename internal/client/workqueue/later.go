package workqueue

import (
	"container/heap"
	"time"

	"k8s.io/utils/clock"
)

// later holds keys that wait for a time. It has one timer, for the earliest. Its user guards it with a lock.
type later[K comparable] struct {
	clock   clock.WithDelayedExecution
	recheck time.Duration // the timer runs no longer than this before the clock is read again; 0 is no limit
	waiting heapOf[K]
	entries map[K]*entry[K]
	timer   clock.Timer
	armed   time.Time // for when the timer is; zero where there is none
}

type entry[K comparable] struct {
	key   K
	at    time.Time
	index int
}

func newLater[K comparable](c clock.WithDelayedExecution) *later[K] {
	return &later[K]{clock: c, entries: map[K]*entry[K]{}}
}

// add has a key wait for a time, and reports whether it did not wait for an earlier time already.
func (l *later[K]) add(key K, at time.Time) bool {
	e := l.entries[key]
	switch {
	case e == nil:
		e = &entry[K]{key: key, at: at}
		l.entries[key] = e
		heap.Push(&l.waiting, e)
	case at.Before(e.at):
		e.at = at
		heap.Fix(&l.waiting, e.index)
	default:
		return false
	}
	return true
}

// due returns the first key if it is due within a time.
func (l *later[K]) due(within time.Duration) (key K, ok bool) {
	if len(l.waiting) == 0 || l.waiting[0].at.Sub(l.clock.Now()) > within {
		return key, false
	}
	return l.waiting[0].key, true
}

// arm returns the keys that are due, which no longer wait, and has ring called when the next one is. ring is not called
// if the next call of arm comes first.
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
		next := l.waiting[0].at
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
		// The clock was moved before there was a timer.
	}
}

func (l *later[K]) disarm() {
	if l.timer != nil {
		l.timer.Stop()
	}
	l.armed, l.timer = time.Time{}, nil
}

func (l *later[K]) stop() {
	l.disarm()
	l.waiting, l.entries = nil, nil
}

// heapOf is a container/heap of entries by their times.
type heapOf[K comparable] []*entry[K]

func (h heapOf[K]) Len() int           { return len(h) }
func (h heapOf[K]) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
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
