package scheduler

import (
	"container/heap"
	"container/list"
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	delay "github.com/coxswain-dev/coxswain/internal/backoff"
	"github.com/coxswain-dev/coxswain/internal/clock/virtualtime"
	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

const (
	// A pod that no event has woken for this long is retried nevertheless, because a hint may be wrong.
	maxUnschedulable   = 5 * time.Minute
	staleCheckInterval = 30 * time.Second
)

// place is the part of the queue that a pod is in. The names are values of the queue label of
// scheduler_pending_pods.
type place string

const (
	active        place = "active"        // waits for its turn
	backoff       place = "backoff"       // tried when its back-off is over, or when active is empty
	unschedulable place = "unschedulable" // sleeps until an event may help it
	gated         place = "gated"         // rejected by a PreEnqueue plugin
	inFlight      place = "in-flight"     // being tried or bound
)

// queue holds the pods that have no node, in the order of the QueueSort plugin.
//
// If a pod could not be placed, the queue records the plugins that rejected it. The pod sleeps until a change that
// one of them has registered for, unless the plugin's hint excludes it. The pod is then retried when its back-off
// is over, which starts at the failed attempt and doubles from 1 s to 10 s, or earlier if no other pod waits for
// its turn (KEP-5142). A pod whose attempt ended with an error always waits for its back-off.
//
// Changes that happen while a pod is in flight are not lost: they are kept as long as an attempt that began before
// them is running, and a failed pod is checked against the changes since its attempt began.
type queue struct {
	queueOptions

	// mu guards the fields below and all fields of queuedPod.
	mu        sync.Mutex
	notEmpty  sync.Cond // wakes pop when active or backoff has a pod
	pods      map[types.UID]*queuedPod
	active    podHeap
	backoff   podHeap
	errors    podHeap                  // pods in back-off after an error
	asleep    map[types.UID]*queuedPod // unschedulable and gated
	inFlight  list.List                // *attempt and *framework.Change, in the order of their beginning
	nextStale time.Time
	leading   bool // run has been called
	closed    bool
	rearm     chan struct{} // wakes await when the earliest back-off may have changed; holds one token at most
}

type queueOptions struct {
	clock                      clock.WithTicker
	initialBackoff, maxBackoff time.Duration
	less                       func(a, b *framework.QueuedPod) bool
	preEnqueue                 func(*framework.PodInfo) *framework.Status
	hints                      func(pod *framework.PodInfo, plugin string) []framework.EventHint
	incoming                   func(at place, event string) // counts pods that come to a place; may be nil
}

// queuedPod is a pod in the queue. All fields are guarded by queue.mu.
type queuedPod struct {
	framework.QueuedPod
	place        place
	failedAt     time.Time
	backoffUntil time.Time
	refusedBy    map[string]struct{}
	index        int // in its heap
}

// attempt is one attempt to place a pod.
type attempt struct {
	info     *framework.PodInfo // its state when the attempt began
	queued   *queuedPod
	began    time.Time
	first    time.Time // when the pod first entered the queue
	attempts int
	element  *list.Element
}

func newQueue(o queueOptions) *queue {
	q := &queue{queueOptions: o, pods: map[types.UID]*queuedPod{}, asleep: map[types.UID]*queuedPod{},
		rearm: make(chan struct{}, 1)}
	if q.incoming == nil {
		q.incoming = func(place, string) {}
	}
	q.notEmpty.L = &q.mu
	q.active.less = func(a, b *queuedPod) bool { return q.less(&a.QueuedPod, &b.QueuedPod) }
	q.errors.less = func(a, b *queuedPod) bool { return a.backoffUntil.Before(b.backoffUntil) }
	q.backoff.less = func(a, b *queuedPod) bool {
		if earlier := a.backoffUntil.Unix() - b.backoffUntil.Unix(); earlier != 0 {
			return earlier < 0
		}
		return q.less(&a.QueuedPod, &b.QueuedPod)
	}
	return q
}

// backingOff returns the heap of pods whose back-off has the same kind as the pod's.
func (q *queue) backingOff(p *queuedPod) *podHeap {
	if len(p.refusedBy) == 0 {
		return &q.errors
	}
	return &q.backoff
}

// set adds a pod or updates its state. A change is not nil if a part that plugins read has changed, and not only
// the status.
func (q *queue) set(info *framework.PodInfo, change *framework.Change) {
	q.mu.Lock()
	defer q.mu.Unlock()
	p := q.pods[info.Pod.UID]
	if p == nil {
		p = &queuedPod{QueuedPod: framework.QueuedPod{PodInfo: info, First: q.clock.Now()}, index: -1}
		q.pods[info.Pod.UID] = p
		q.admit(p, "PodAdd")
		return
	}
	switch p.place {
	case active, backoff: // a new priority changes its position
		q.take(p)
		p.PodInfo = info
		q.put(p, p.place)
	case inFlight:
		p.PodInfo = info
		if change != nil {
			q.inFlight.PushBack(change)
		}
	default:
		p.PodInfo = info
		if change != nil {
			q.notify(p, change)
		}
	}
}

// remove removes a pod from its place.
func (q *queue) remove(uid types.UID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if p := q.pods[uid]; p != nil {
		q.take(p)
		delete(q.pods, uid)
	}
}

// happened wakes the pods that a change may help.
func (q *queue) happened(change *framework.Change) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.inFlight.Len() > 0 {
		q.inFlight.PushBack(change)
	}
	for _, p := range q.asleep {
		q.notify(p, change)
	}
}

// pop waits for the next pod to try. It returns nil when the queue is closed.
func (q *queue) pop() *attempt {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.active.pods)+len(q.backoff.pods) == 0 && !q.closed {
		q.notEmpty.Wait()
	}
	if q.closed {
		return nil
	}
	if len(q.active.pods) == 0 {
		q.incoming(active, "PopFromBackoffQ")
		q.put(heap.Pop(&q.backoff).(*queuedPod), active)
	}
	p := heap.Pop(&q.active).(*queuedPod)
	p.place = inFlight
	p.Attempts++
	a := &attempt{info: p.PodInfo, queued: p, began: q.clock.Now(), first: p.First, attempts: p.Attempts}
	a.element = q.inFlight.PushBack(a)
	return a
}

// bound ends an attempt that succeeded.
func (q *queue) bound(a *attempt) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.current(a) {
		delete(q.pods, a.info.Pod.UID)
	}
	q.ended(a)
}

// failed ends an attempt that failed. With refusedBy, the pod sleeps until a change may make one of these plugins
// accept it. Without, there was an error, and the pod is retried after its back-off.
func (q *queue) failed(a *attempt, refusedBy map[string]struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	defer q.ended(a)
	if !q.current(a) {
		return // deleted or bound meanwhile
	}
	p := a.queued
	p.failedAt = q.clock.Now()
	p.backoffUntil = p.failedAt.Add(delay.After(p.Attempts, q.initialBackoff, q.maxBackoff))
	p.refusedBy = refusedBy
	if len(refusedBy) == 0 {
		q.wake(p, "ScheduleAttemptFailure")
		return
	}
	for e := a.element.Next(); e != nil; e = e.Next() {
		if change, ok := e.Value.(*framework.Change); ok && q.mayHelp(p, change) {
			q.wake(p, change.String())
			return
		}
	}
	q.incoming(unschedulable, "ScheduleAttemptFailure")
	q.put(p, unschedulable)
}

// run moves the pods whose back-off is over, until ctx ends. Then it closes the queue.
func (q *queue) run(ctx context.Context) {
	defer q.close()
	q.mu.Lock()
	q.leading = true
	q.mu.Unlock()
	for ctx.Err() == nil {
		q.await(ctx)
	}
}

// await moves the pods that are due, and waits until more may be due.
func (q *queue) await(ctx context.Context) {
	due, stale := q.flush()
	ring, late := q.alarm(q.clock, due)
	defer late()
	look, late := q.alarm(virtualtime.Periodic(q.clock), stale)
	defer late()
	select {
	case <-ctx.Done():
	case <-ring:
	case <-look:
	case <-q.rearm:
	}
}

// alarm returns a channel that receives when a time has come; nil for the zero time.
func (q *queue) alarm(c clock.WithTicker, due time.Time) (<-chan time.Time, func()) {
	if due.IsZero() {
		return nil, func() {}
	}
	timer := c.NewTimer(due.Sub(q.clock.Now()))
	if !q.clock.Now().Before(due) { // the clock may have jumped before the timer existed
		q.signal()
	}
	return timer.C(), func() { timer.Stop() }
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.notEmpty.Broadcast()
}

// flush moves the pods that are due. It returns the next end of a back-off, and the next check for pods that no
// event has woken; zero if no pod waits for it.
func (q *queue) flush() (due, stale time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.clock.Now()
	for _, h := range []*podHeap{&q.backoff, &q.errors} {
		for len(h.pods) > 0 && !h.pods[0].backoffUntil.After(now) {
			q.incoming(active, "BackoffComplete")
			q.put(heap.Pop(h).(*queuedPod), active)
		}
		if len(h.pods) > 0 && (due.IsZero() || h.pods[0].backoffUntil.Before(due)) {
			due = h.pods[0].backoffUntil
		}
	}
	if !now.Before(q.nextStale) {
		q.nextStale = now.Add(staleCheckInterval)
		for _, p := range q.asleep {
			if p.place == unschedulable && now.Sub(p.failedAt) >= maxUnschedulable {
				q.wake(p, "UnschedulableTimeout")
			}
		}
	}
	if len(q.asleep) > 0 {
		stale = q.nextStale
	}
	return due, stale
}

// busy describes a pod that is being tried, or will be tried without any further change. Pods that wait in their
// binding cycle do not count. With a manual clock, pods in back-off after an error do not count either.
func (q *queue) busy(waits func(types.UID) bool) string {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || !q.leading {
		return ""
	}
	name := func(p *framework.PodInfo) string { return p.Pod.Namespace + "/" + p.Pod.Name }
	for _, h := range []*podHeap{&q.active, &q.backoff} {
		if len(h.pods) > 0 {
			return name(h.pods[0].PodInfo) + " waits for its turn"
		}
	}
	for e := q.inFlight.Front(); e != nil; e = e.Next() {
		if a, ok := e.Value.(*attempt); ok && !waits(a.info.Pod.UID) {
			return name(a.info) + " is being scheduled"
		}
	}
	now := q.clock.Now()
	if len(q.errors.pods) > 0 && !(virtualtime.IsManual(q.clock) && q.errors.pods[0].backoffUntil.After(now)) {
		return name(q.errors.pods[0].PodInfo) + " is due for another try"
	}
	for _, p := range q.asleep {
		if p.place == unschedulable && now.Sub(p.failedAt) >= maxUnschedulable && !now.Before(q.nextStale) {
			return name(p.PodInfo) + " is due for another try"
		}
	}
	return ""
}

// counts returns the number of pods at each place.
func (q *queue) counts() map[place]int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := map[place]int{active: len(q.active.pods), backoff: len(q.backoff.pods) + len(q.errors.pods), unschedulable: 0,
		gated: 0}
	for _, p := range q.asleep {
		n[p.place]++
	}
	return n
}

// refusals calls count for each sleeping pod and each plugin that rejected it.
func (q *queue) refusals(count func(pod *framework.PodInfo, plugin string)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, p := range q.asleep {
		for plugin := range p.refusedBy {
			count(p.PodInfo, plugin)
		}
	}
}

// changesKept returns the number of changes that are kept for attempts in flight.
func (q *queue) changesKept() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	for e := q.inFlight.Front(); e != nil; e = e.Next() {
		if _, ok := e.Value.(*framework.Change); ok {
			n++
		}
	}
	return n
}

// The methods below expect mu to be held.

func (q *queue) current(a *attempt) bool {
	// current reports whether an attempt is the pod's present one: the pod was not removed or added again since.
	return q.pods[a.info.Pod.UID] == a.queued && a.queued.place == inFlight
}

// ended removes an attempt, and drops the changes that no other attempt in flight needs.
func (q *queue) ended(a *attempt) {
	q.inFlight.Remove(a.element)
	for e := q.inFlight.Front(); e != nil; e = q.inFlight.Front() {
		if _, ok := e.Value.(*attempt); ok {
			return
		}
		q.inFlight.Remove(e)
	}
}

// admit puts a new or gated pod into active, if the PreEnqueue plugins accept it.
func (q *queue) admit(p *queuedPod, event string) {
	if status := q.preEnqueue(p.PodInfo); !status.OK() {
		p.refusedBy = map[string]struct{}{status.Plugin(): {}}
		if p.place != gated {
			q.incoming(gated, event)
		}
		q.put(p, gated)
		return
	}
	p.refusedBy = nil
	q.incoming(active, event)
	q.put(p, active)
}

// notify wakes a sleeping pod if a change may help it.
func (q *queue) notify(p *queuedPod, change *framework.Change) {
	switch {
	case !q.mayHelp(p, change):
	case p.place == gated:
		q.admit(p, change.String())
	default:
		q.wake(p, change.String())
	}
}

// wake retries a pod: now, or when its back-off is over.
func (q *queue) wake(p *queuedPod, event string) {
	if status := q.preEnqueue(p.PodInfo); !status.OK() {
		p.refusedBy = map[string]struct{}{status.Plugin(): {}}
		q.put(p, gated)
		return
	}
	target := active
	if q.clock.Now().Before(p.backoffUntil) {
		target = backoff
	}
	q.incoming(target, event)
	q.put(p, target)
}

// put moves a pod to a place. The caller has removed it from its heap.
func (q *queue) put(p *queuedPod, target place) {
	if target == active && p.place != active {
		p.Added = q.clock.Now()
	}
	if target == unschedulable || target == gated {
		q.asleep[p.Pod.UID] = p
	} else {
		delete(q.asleep, p.Pod.UID)
	}
	p.place = target
	switch target {
	case active:
		heap.Push(&q.active, p)
		q.notEmpty.Signal()
	case backoff:
		heap.Push(q.backingOff(p), p)
		q.notEmpty.Signal()
		q.signal()
	case unschedulable:
		q.signal()
	}
}

// take removes a pod from its place.
func (q *queue) take(p *queuedPod) {
	switch p.place {
	case active:
		heap.Remove(&q.active, p.index)
	case backoff:
		heap.Remove(q.backingOff(p), p.index)
	default:
		delete(q.asleep, p.Pod.UID)
	}
}

// signal wakes await.
func (q *queue) signal() {
	select {
	case q.rearm <- struct{}{}:
	default:
	}
}

// mayHelp reports whether a change may make one of the plugins that rejected a pod accept it.
func (q *queue) mayHelp(p *queuedPod, change *framework.Change) bool {
	// A change of a waiting pod affects that pod alone.
	if info, ok := change.New.(*framework.PodInfo); ok && change.Resource == framework.UnscheduledPod &&
		info.Pod.UID != p.Pod.UID {
		return false
	}
	for plugin := range p.refusedBy {
		for _, h := range q.hints(p.PodInfo, plugin) {
			if h.Matches(change.ClusterEvent) && (h.Helps == nil || h.Helps(p.PodInfo, change)) {
				return true
			}
		}
	}
	return false
}

// podHeap is a container/heap of pods that records the index of each.
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
