package flowcontrol

import (
	"sync"
	"time"

	flowv1 "k8s.io/api/flowcontrol/v1"
)

// level is a priority level: its seats, and the requests that hold them or wait for them.
type level struct {
	name   string
	exempt bool

	// Dispatcher.mu guards these.
	spec                  flowv1.PriorityLevelConfigurationSpec
	quiescing             bool // its object is gone, and it ends when it is idle
	nominal, lower, upper int  // seats, by the configuration alone
	stats                 stats

	// mu guards the fields below, and the requests of the level while they wait or execute.
	mu       sync.Mutex
	limit    int                          // seats, at present
	widest   int                          // seats that one request may have
	queuing  *flowv1.QueuingConfiguration // nil if the level rejects
	queues   []*queue                     // by index; nil until a flow uses the queue
	backlog  backlog                      // the queues with waiting requests
	virtual  float64                      // the virtual time, in seat-seconds; it only grows
	arrivals uint64                       // counts the queues that came into the backlog, to order equal tags

	// Invariant after each method: if requests wait, the first queue of the backlog does not fit.
	executing    requests
	inUse        int // seats of the executing requests; may exceed limit after that was reduced
	waiting      int // requests
	waitingSeats int // seats of the waiting requests
	demand       demand
	counts       struct{ dispatched, rejected, timedOut, cancelled uint64 }
}

// start gives the request its seats, or reports that it must wait, or returns the reason why it is rejected. A request
// starts at once only if no other one waits, so that it does not overtake.
func (l *level) start(now time.Duration, r *Request) (wait bool, rejected *Rejection) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.arrived = now
	r.width = min(max(r.Seats, 1), l.widest)
	if l.exempt || len(l.backlog) == 0 && l.fits(r) {
		if l.queuing != nil {
			r.queue = l.choose(r)
			r.queue.tag = max(r.queue.tag, l.virtual)
			l.virtual = r.queue.tag
			r.charge()
		}
		l.begin(now, r)
		return false, nil
	}
	if l.queuing == nil {
		l.counts.rejected++
		return false, &Rejection{Reason: ConcurrencyLimit}
	}
	q := l.choose(r)
	if q.waiting.n >= int(l.queuing.QueueLengthLimit) {
		l.counts.rejected++
		return false, &Rejection{Reason: QueueFull}
	}
	r.queue, r.state, r.ready = q, waiting, make(chan struct{})
	if q.waiting.n == 0 {
		q.tag = max(q.tag, l.virtual)
		l.arrivals++
		q.arrival = l.arrivals
	}
	q.waiting.add(r)
	q.seats += r.width
	l.waiting++
	l.waitingSeats += r.width
	r.schema.metrics.queued(q.waiting.n)
	l.backlog.fix(q)
	l.dispatch(now)
	l.demand.note(now, l.inUse+l.waitingSeats)
	return true, nil
}

// fits reports whether there are seats for the request. One that is wider than the level is served alone.
func (l *level) fits(r *Request) bool { return l.inUse == 0 || l.inUse+r.width <= l.limit }

// choose returns the queue of the flow's hand with the least waiting work.
func (l *level) choose(r *Request) *queue {
	h := deal(r.hash(), len(l.queues), int(l.queuing.HandSize))
	var best *queue
	for _, card := range h.cards[:h.size] {
		q := l.queues[card]
		if q == nil {
			q = &queue{index: card, place: -1}
			l.queues[card] = q
		}
		if best == nil || q.seats+q.inUse < best.seats+best.inUse || q.seats+q.inUse == best.seats+best.inUse &&
			q.tag < best.tag {
			best = q
		}
	}
	return best
}

// charge advances the tag of the request's queue.
func (r *Request) charge() {
	q := r.queue
	q.tag += guess * float64(r.width)
	q.executing++
	q.inUse += r.width
}

// begin gives the request its seats. l.mu is held.
func (l *level) begin(now time.Duration, r *Request) {
	r.state, r.began = executing, now
	l.executing.add(r)
	l.inUse += r.width
	l.counts.dispatched++
	l.demand.note(now, l.inUse+l.waitingSeats)
}

// dispatch starts waiting requests that fit, in order. It must be called whenever seats become free, the limit grows,
// or a request enters or leaves a queue. l.mu is held.
func (l *level) dispatch(now time.Duration) {
	for len(l.backlog) > 0 {
		q := l.next()
		if q == nil {
			l.backlog[0].waiting.first.schema.metrics.unaccommodated.Inc()
			return
		}
		l.virtual = max(l.virtual, l.backlog[0].tag)
		r := q.waiting.first
		l.takeOut(r)
		r.charge()
		l.backlog.fix(q)
		l.begin(now, r)
		close(r.ready)
	}
}

// next returns the queue to serve, nil if there is no room. The first request that does not fit holds back the others:
// otherwise wide requests would never be served. It does not hold back a queue that has no more seats than its own,
// which would wait for requests that may take long.
func (l *level) next() *queue {
	first := l.backlog[0]
	if l.fits(first.waiting.first) {
		return first
	}
	var best *queue
	for _, q := range l.backlog[1:] {
		r := q.waiting.first
		if q.inUse+r.width <= first.inUse && l.fits(r) && (best == nil || q.before(best)) {
			best = q
		}
	}
	return best
}

// takeOut removes the request from its queue. The caller must fix the backlog.
func (l *level) takeOut(r *Request) {
	r.queue.waiting.remove(r)
	r.queue.seats -= r.width
	l.waiting--
	l.waitingSeats -= r.width
}

// leave removes a request that gives up from its queue. It returns false if the request has its seats already; the
// caller then owns the seats.
func (l *level) leave(now time.Duration, r *Request, reason string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.state != waiting {
		return false
	}
	r.state = finished
	l.takeOut(r)
	l.backlog.fix(r.queue)
	if reason == Cancelled {
		l.counts.cancelled++
	} else {
		l.counts.timedOut++
	}
	l.dispatch(now) // it may have been the wide one that held back others
	l.demand.note(now, l.inUse+l.waitingSeats)
	return true
}

// finish releases the request's seats, charges it for its time, and starts others.
func (l *level) finish(now time.Duration, r *Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.state = finished
	l.executing.remove(r)
	l.inUse -= r.width
	if q := r.queue; q != nil {
		q.executing--
		q.inUse -= r.width
		q.tag += ((now - r.began).Seconds() - guess) * float64(r.width)
		l.backlog.fix(q)
	}
	l.dispatch(now)
	l.demand.note(now, l.inUse+l.waitingSeats)
}

// set applies the object's spec. Requests in queues that no longer exist are served as before.
func (l *level) set(spec flowv1.PriorityLevelConfigurationSpec) {
	l.spec, l.quiescing = spec, false
	l.mu.Lock()
	defer l.mu.Unlock()
	var queuing *flowv1.QueuingConfiguration
	if spec.Limited != nil {
		queuing = spec.Limited.LimitResponse.Queuing
	}
	l.queuing = queuing
	switch {
	case queuing == nil:
		l.queues = nil
	case len(l.queues) != int(queuing.Queues):
		queues := make([]*queue, queuing.Queues)
		copy(queues, l.queues)
		l.queues = queues
	}
}

// limitTo sets the level's number of seats, and starts waiting requests. Executing requests keep their seats, even if
// there are fewer now.
func (l *level) limitTo(now time.Duration, seats int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.limit = seats
	l.dispatch(now)
	l.demand.note(now, l.inUse+l.waitingSeats)
}

func (l *level) idle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.executing.n == 0 && l.waiting == 0
}
