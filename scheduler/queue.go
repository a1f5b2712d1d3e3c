package scheduler

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

const (
	initialBackoff = 1 * time.Second
	maxBackoff     = 10 * time.Second
	// A pod that no event has woken for this long is tried all the same: a hint may be wrong.
	maxUnschedulable   = 5 * time.Minute
	staleCheckInterval = 30 * time.Second
)

// place is where a pod of the queue is. The names are the values of the queue label of
// scheduler_pending_pods.
type place string

const (
	active        place = "active"        // will be tried as soon as its turn comes
	backoff       place = "backoff"       // will be tried when its back-off is over
	unschedulable place = "unschedulable" // sleeps until an event may help it
	gated         place = "gated"         // refused by a PreEnqueue plugin
	inFlight      place = "in-flight"     // being tried or bound
)

// queue holds the pods that have no node, highest priority first and then first come, first served.
//
// A pod that could not be placed remembers which plugins refused it. It sleeps until an event
// happens that one of them has registered for, and is then tried again when its back-off, which starts at the
// failed attempt and doubles from 1 s to 10 s, is over. Events that happen while the pod is
// in flight are not lost: they are numbered, and a pod that fails looks for those since its attempt began.
type queue struct {
	clock      clock.WithTicker
	preEnqueue func(*framework.PodInfo) *framework.Status
	hints      func(pod *framework.PodInfo, plugin string) []framework.EventHint

	mu        sync.Mutex
	notEmpty  sync.Cond
	pods      map[types.UID]*queuedPod
	active    podHeap
	backoff   podHeap
	sequence  uint64                          // counts events
	last      [framework.ClusterEvents]uint64 // the number of the last event of each kind
	nextStale time.Time
	closed    bool
	rearm     chan struct{} // the earliest back-off may have changed
}

// queuedPod is a pod in the queue. All fields are guarded by queue.mu.
type queuedPod struct {
	info         *framework.PodInfo
	place        place
	added        time.Time // when it came to the place it was last tried from
	attempts     int
	failedAt     time.Time
	backoffUntil time.Time
	refusedBy    map[string]struct{}
	index        int // in its heap
}

// attempt is one try at placing a pod.
type attempt struct {
	info     *framework.PodInfo // as it was when the attempt began
	queued   *queuedPod
	sequence uint64 // of the last event before the attempt
	began    time.Time
}

func newQueue(c clock.WithTicker, preEnqueue func(*framework.PodInfo) *framework.Status,
	hints func(*framework.PodInfo, string) []framework.EventHint) *queue {
	q := &queue{
		clock: c, preEnqueue: preEnqueue, hints: hints,
		pods: map[types.UID]*queuedPod{}, rearm: make(chan struct{}, 1),
	}
	q.notEmpty.L = &q.mu
	q.active.less = func(a, b *queuedPod) bool {
		if a.info.Priority() != b.info.Priority() {
			return a.info.Priority() > b.info.Priority()
		}
		return a.added.Before(b.added)
	}
	q.backoff.less = func(a, b *queuedPod) bool { return a.backoffUntil.Before(b.backoffUntil) }
	return q
}

// set adds a pod or takes note of its new state. changed says that something that plugins look at
// is different, and not only the status.
func (q *queue) set(info *framework.PodInfo, changed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	p := q.pods[info.Pod.UID]
	switch {
	case p == nil:
		p = &queuedPod{info: info, index: -1}
		q.pods[info.Pod.UID] = p
		q.admit(p)
		return
	case p.place == active || p.place == backoff: // a new priority changes its position
		q.take(p)
		p.info = info
		q.put(p, p.place)
		return
	}
	p.info = info
	if !changed {
		return
	}
	switch p.place {
	case gated:
		q.admit(p)
	case unschedulable:
		if q.mayHelp(p, framework.PodUpdated, nil) {
			q.wake(p)
		}
	case inFlight:
		q.sequence++
		q.last[framework.PodUpdated] = q.sequence
	}
}

// remove takes a pod out, wherever it is.
func (q *queue) remove(uid types.UID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if p := q.pods[uid]; p != nil {
		q.take(p)
		delete(q.pods, uid)
	}
}

// happened wakes the pods that an event may help. node is that of a node event, else nil.
func (q *queue) happened(event framework.ClusterEvent, node *framework.NodeInfo) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.sequence++
	q.last[event] = q.sequence
	for _, p := range q.pods {
		if p.place == unschedulable && q.mayHelp(p, event, node) {
			q.wake(p)
		}
	}
}

// pop waits for the next pod to try. It returns nil when the queue is closed.
func (q *queue) pop() *attempt {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.active.pods) == 0 && !q.closed {
		q.notEmpty.Wait()
	}
	if q.closed {
		return nil
	}
	p := heap.Pop(&q.active).(*queuedPod)
	p.place = inFlight
	p.attempts++
	return &attempt{info: p.info, queued: p, sequence: q.sequence, began: q.clock.Now()}
}

// bound ends an attempt that succeeded.
func (q *queue) bound(a *attempt) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.current(a) {
		delete(q.pods, a.info.Pod.UID)
	}
}

// failed ends an attempt that did not. With refusedBy the pod sleeps until an event may change the
// mind of one of these plugins; without, something broke, and it is tried again after its back-off.
func (q *queue) failed(a *attempt, refusedBy map[string]struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.current(a) {
		return // deleted or bound meanwhile
	}
	p := a.queued
	p.failedAt = q.clock.Now()
	p.backoffUntil = p.failedAt.Add(backoffAfter(p.attempts))
	p.refusedBy = refusedBy
	if len(refusedBy) == 0 || q.helpedSince(p, a.sequence) {
		q.wake(p)
		return
	}
	q.put(p, unschedulable)
}

// run moves pods whose back-off is over, until ctx ends; then it closes the queue.
func (q *queue) run(ctx context.Context) {
	defer q.close()
	for ctx.Err() == nil {
		q.await(ctx, q.flush())
	}
}

// await waits until something is due, where due is not zero, or the queue has changed.
func (q *queue) await(ctx context.Context, due time.Time) {
	var timeout <-chan time.Time
	if !due.IsZero() {
		timer := q.clock.NewTimer(due.Sub(q.clock.Now()))
		defer timer.Stop()
		timeout = timer.C()
		if !q.clock.Now().Before(due) {
			return // a clock that is moved by hand may have jumped before there was a timer
		}
	}
	select {
	case <-ctx.Done():
	case <-timeout:
	case <-q.rearm:
	}
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.notEmpty.Broadcast()
}

// flush moves what is due and says when it wants to be called again; zero where nothing waits.
func (q *queue) flush() (due time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.clock.Now()
	for len(q.backoff.pods) > 0 && !q.backoff.pods[0].backoffUntil.After(now) {
		q.put(heap.Pop(&q.backoff).(*queuedPod), active)
	}
	if !now.Before(q.nextStale) {
		q.nextStale = now.Add(staleCheckInterval)
		for _, p := range q.pods {
			if p.place == unschedulable && now.Sub(p.failedAt) >= maxUnschedulable {
				q.wake(p)
			}
		}
	}
	if len(q.pods) > 0 {
		due = q.nextStale
	}
	if len(q.backoff.pods) > 0 && q.backoff.pods[0].backoffUntil.Before(due) {
		due = q.backoff.pods[0].backoffUntil
	}
	return due
}

// counts is how many pods are at each place.
func (q *queue) counts() map[place]int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := map[place]int{active: 0, backoff: 0, unschedulable: 0, gated: 0}
	for _, p := range q.pods {
		n[p.place]++
	}
	return n
}

// What follows expects mu to be held.

func (q *queue) current(a *attempt) bool {
	return q.pods[a.info.Pod.UID] == a.queued && a.queued.place == inFlight
}

// admit lets a pod in that is new or was gated.
func (q *queue) admit(p *queuedPod) {
	if q.preEnqueue(p.info).Rejected() {
		p.place = gated
		return
	}
	q.put(p, active)
}

// wake gives a pod another try, now or when its back-off is over.
func (q *queue) wake(p *queuedPod) {
	if q.clock.Now().Before(p.backoffUntil) {
		q.put(p, backoff)
		return
	}
	q.put(p, active)
}

func (q *queue) put(p *queuedPod, at place) {
	if at != backoff && p.place != at {
		p.added = q.clock.Now()
	}
	p.place = at
	switch at {
	case active:
		heap.Push(&q.active, p)
		q.notEmpty.Signal()
	case backoff:
		heap.Push(&q.backoff, p)
		q.signal()
	case unschedulable:
		q.signal()
	}
}

func (q *queue) take(p *queuedPod) {
	switch p.place {
	case active:
		heap.Remove(&q.active, p.index)
	case backoff:
		heap.Remove(&q.backoff, p.index)
	}
}

func (q *queue) signal() {
	select {
	case q.rearm <- struct{}{}:
	default:
	}
}

// mayHelp asks the plugins that refused a pod whether an event changes their mind.
func (q *queue) mayHelp(p *queuedPod, event framework.ClusterEvent, node *framework.NodeInfo) bool {
	return q.anyHint(p, func(h framework.EventHint) bool {
		return h.Event == event && (h.Helps == nil || h.Helps(p.info, node))
	})
}

// helpedSince is mayHelp for the events since an attempt began. Their nodes are not kept, so the
// kind of event decides.
func (q *queue) helpedSince(p *queuedPod, sequence uint64) bool {
	return q.anyHint(p, func(h framework.EventHint) bool { return q.last[h.Event] > sequence })
}

func (q *queue) anyHint(p *queuedPod, yes func(framework.EventHint) bool) bool {
	for plugin := range p.refusedBy {
		for _, h := range q.hints(p.info, plugin) {
			if yes(h) {
				return true
			}
		}
	}
	return false
}

// backoffAfter is how long a pod rests after so many failed attempts.
func backoffAfter(attempts int) time.Duration {
	d := initialBackoff
	for i := 1; i < attempts && d < maxBackoff; i++ {
		d *= 2
	}
	return min(d, maxBackoff)
}

// podHeap is a container/heap of pods that knows where each one is.
type podHeap struct {
	pods []*queuedPod
	less func(a, b *queuedPod) bool
}

func (h *podHeap) Len() int           { return len(h.pods) }
func (h *podHeap) Less(i, j int) bool { return h.less(h.pods[i], h.pods[j]) }
func (h *podHeap) Swap(i, j int) {
	h.pods[i], h.pods[j] = h.pods[j], h.pods[i]
	h.pods[i].index, h.pods[j].index = i, j
}
func (h *podHeap) Push(x any) {
	p := x.(*queuedPod)
	p.index = len(h.pods)
	h.pods = append(h.pods, p)
}
func (h *podHeap) Pop() any {
	last := len(h.pods) - 1
	p := h.pods[last]
	h.pods[last] = nil
	h.pods = h.pods[:last]
	p.index = -1
	return p
}
