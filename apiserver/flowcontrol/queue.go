package flowcontrol

import "container/heap"

// Queues are served by start-time fair queuing (Goyal, Vin, Cheng 1996), in seat-seconds: each has a
// tag, which is the service that it has received; the next request to be served is the first of the
// queue with the lowest tag; and the level's virtual time is the highest tag that has been served. A
// queue that was empty begins again at the virtual time, so that no flow saves up service. The duration
// of a request is not known when it begins: it is charged a guess, and the rest when it ends. In
// kube-apiserver, virtual time also advances with the number of busy queues; this has the same bounds
// and need not know how fast the server is.

// guess is charged to a request when it begins, in seconds for each seat; the number is
// kube-apiserver's.
const guess = 0.003

// queue is one queue of a level. The level's lock guards it.
type queue struct {
	index     int
	tag       float64 // seat-seconds
	arrival   uint64  // of the first waiting request, to order queues with the same tag
	waiting   requests
	seats     int // of the waiting requests
	executing int // the number of requests being served
	inUse     int // their seats
	place     int // in the backlog, -1 if no request waits
}

// before reports whether the queue is served before another one.
func (q *queue) before(other *queue) bool {
	if q.tag != other.tag {
		return q.tag < other.tag
	}
	return q.arrival < other.arrival
}

// requests is a list in order of arrival. Its links are in the requests.
type requests struct {
	first, last *Request
	n           int
}

func (l *requests) add(r *Request) {
	r.previous, r.next = l.last, nil
	if l.last == nil {
		l.first = r
	} else {
		l.last.next = r
	}
	l.last = r
	l.n++
}

func (l *requests) remove(r *Request) {
	if r.previous == nil {
		l.first = r.next
	} else {
		r.previous.next = r.next
	}
	if r.next == nil {
		l.last = r.previous
	} else {
		r.next.previous = r.previous
	}
	r.previous, r.next = nil, nil
	l.n--
}

// backlog holds the queues with waiting requests, the one with the lowest tag first.
type backlog []*queue

func (b backlog) Len() int { return len(b) }

func (b backlog) Less(i, k int) bool { return b[i].before(b[k]) }

func (b backlog) Swap(i, k int) {
	b[i], b[k] = b[k], b[i]
	b[i].place, b[k].place = i, k
}

func (b *backlog) Push(q any) {
	q.(*queue).place = len(*b)
	*b = append(*b, q.(*queue))
}

func (b *backlog) Pop() any {
	last := len(*b) - 1
	q := (*b)[last]
	(*b)[last] = nil
	*b = (*b)[:last]
	q.place = -1
	return q
}

// fix restores the order after q's tag or its requests have changed.
func (b *backlog) fix(q *queue) {
	switch {
	case q.place < 0 && q.waiting.n > 0:
		heap.Push(b, q)
	case q.place >= 0 && q.waiting.n == 0:
		heap.Remove(b, q.place)
	case q.place >= 0:
		heap.Fix(b, q.place)
	}
}
