package workqueue

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/internal/backoff"
	"github.com/coxswain-dev/coxswain/internal/clock/virtualtime"
)

const (
	// soon is the time within which a retry still counts as work that is left.
	soon = time.Second
	// recheck is how often the wall clock is read while a key waits for a moment: a timer does not notice that the
	// clock was set.
	recheck = 10 * time.Second
)

// Options configure a queue.
type Options struct {
	// Name is the queue's label in Metrics.
	Name string
	// Workers is the number of keys that are worked on at once; at least one.
	Workers int
	// MinRetry is the delay before the first retry of a key. It doubles with each further retry, up to MaxRetry.
	MinRetry, MaxRetry time.Duration
	// Clock is the clock of AddAfter, AddAt and AddPeriodic. It must be a clock.WithDelayedExecution, as all clocks
	// of k8s.io/utils/clock are.
	Clock clock.WithTicker
	// Metrics may be nil: then the queue is not measured.
	Metrics *Metrics
}

// Queue holds keys until they have been worked on. Its methods are safe for concurrent use.
//
// A key is in one of four states: absent, waiting for a worker (in queued and ready), worked on (in working), or
// worked on and added again (in working and queued). Independently of that it may wait for a time in each of the
// four later heaps; its time makes it an Add.
type Queue[K comparable] struct {
	Options
	work    func(ctx context.Context, key K) // called without mu, by one worker at a time for a key
	metrics *queueMetrics                    // nil without Metrics

	// mu guards the fields below, except rings, which is atomic. It may be held while a method of a clock is
	// called, and never the other way round: see ring.
	mu      sync.Mutex
	ctx     context.Context // the context of Start, for the workers; nil before
	stopped bool            // the context has ended: no key is taken any more
	workers int             // goroutines that run worker; at most Options.Workers
	running sync.WaitGroup  // the workers, and the function that stops the queue after the context has ended
	// ready are the keys that wait for a worker, in the order of their arrival. None of them is in working.
	ready []K
	// queued are the keys in ready, and the keys in working that were added again meanwhile. The value is the time
	// of the Add, for the metrics; zero without them.
	queued  map[K]time.Time
	working map[K]time.Time // keys with a worker, and since when
	failed  map[K]int       // how many retries in a row, until Forget
	delayed *later[K]       // AddAfter, by Options.Clock
	moments *later[K]       // AddAt, by the wall time of Options.Clock: no time in it has a monotonic reading
	period  *later[K]       // AddPeriodic, by Options.Clock as a clock for periodic work
	retried *later[K]       // Retry, by real time
	// rings counts timers that have fired and whose keys are not yet added. Busy needs it: such a key is still in a
	// heap, where it does not count as work, until the goroutine that ring starts has added it.
	rings atomic.Int64
}

// New returns a queue that calls work for its keys. It accepts keys at once, and works on them after Start. At most
// one call of work runs for a key at a time; its context is that of Start.
func New[K comparable](o Options, work func(ctx context.Context, key K)) *Queue[K] {
	return newQueue(o, clock.RealClock{}, work)
}

func newQueue[K comparable](o Options, real clock.WithDelayedExecution, work func(context.Context, K)) *Queue[K] {
	o.Workers = max(1, o.Workers)
	q := &Queue[K]{
		Options: o, work: work, queued: map[K]time.Time{}, working: map[K]time.Time{}, failed: map[K]int{},
	}
	q.delayed, q.retried = newLater[K](o.Clock.(clock.WithDelayedExecution)), newLater[K](real)
	q.moments = newLater[K](q.delayed.clock)
	if !virtualtime.IsManual(o.Clock) {
		q.moments.recheck = recheck
	}
	q.period = newLater[K](virtualtime.Periodic(o.Clock).(clock.WithDelayedExecution))
	if o.Metrics != nil {
		q.metrics = o.Metrics.forQueue(o.Name)
	}
	return q
}

// Start starts the workers. When ctx ends, the queue drops its keys and accepts no more; running workers end with
// their present key. Start must be called once at most.
func (q *Queue[K]) Start(ctx context.Context) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ctx = ctx
	forget := q.Metrics.watch(q)
	q.running.Add(1)
	context.AfterFunc(ctx, func() {
		defer q.running.Done()
		forget()
		q.stop()
	})
	q.employ()
}

// Wait returns when the context of Start has ended and the last worker has returned. It must not be called before
// Start.
func (q *Queue[K]) Wait() { q.running.Wait() }

// stop drops all keys except the ones that are being worked on.
func (q *Queue[K]) stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stopped = true
	q.metrics.dropped(len(q.ready))
	q.ready = nil
	q.delayed.stop()
	q.moments.stop()
	q.period.stop()
	q.retried.stop()
}

// Add queues a key for the next free worker. If the key waits for a worker already, Add has no effect. If it is
// being worked on, it is worked on again afterwards: the work under way may have read the world before the change
// that the caller reports.
func (q *Queue[K]) Add(key K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.add(key)
}

// AddAfter adds a key when d has passed on the queue's clock. If it is called several times for a key, the earliest
// time counts.
func (q *Queue[K]) AddAfter(key K, d time.Duration) {
	if d <= 0 {
		q.Add(key)
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.wait(q.delayed, key, d)
}

// AddAt adds a key when the wall time of the queue's clock has reached a moment, even if that clock is set forwards
// or back meanwhile; the key may then come ten seconds late. If it is called several times for a key, the earliest
// moment counts. AddAt ignores any reading of the monotonic clock in t: a caller that compares t with the time must
// do so as well.
func (q *Queue[K]) AddAt(key K, t time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	t = t.Round(0)
	if !t.After(q.Clock.Now()) {
		q.add(key)
		return
	}
	q.waitUntil(q.moments, key, t)
}

// AddPeriodic adds a key when d has passed on the queue's clock, for work that is repeated and seldom finds
// anything to do. A clock that is moved by hand does not stop for it (virtualtime.Periodic).
func (q *Queue[K]) AddPeriodic(key K, d time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.wait(q.period, key, d)
}

// Retry adds a key after a delay in real time, which doubles with each Retry of the key until Forget. The delay has a
// random part, so that keys and servers that failed together do not come back together.
func (q *Queue[K]) Retry(key K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.failed[key]++
	q.metrics.retry()
	delay := backoff.After(q.failed[key], q.MinRetry, q.MaxRetry)
	q.wait(q.retried, key, wait.Jitter(delay, backoff.Jitter))
}

// Forget resets the delay of a key's retries. It does not cancel a retry that is waiting.
func (q *Queue[K]) Forget(key K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.failed, key)
}

// Retries returns how often Retry has been called for a key since the last Forget.
func (q *Queue[K]) Retries(key K) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.failed[key]
}

// Busy describes work that is left: a key that is worked on or waits for a worker, a key whose timer has fired, or
// a key that will be retried within a second. It is "" if there is none, or if the queue has stopped. Keys that
// wait for other times are not work: only their clock can make them so.
func (q *Queue[K]) Busy() string {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopped {
		return ""
	}
	for key := range q.working {
		return fmt.Sprintf("%v is being worked on", key)
	}
	if len(q.ready) > 0 {
		return fmt.Sprintf("%v waits for a worker", q.ready[0])
	}
	if q.rings.Load() > 0 {
		return "a delay has passed"
	}
	if key, ok := q.retried.due(soon); ok {
		return fmt.Sprintf("%v will be tried again (%d)", key, q.failed[key])
	}
	return ""
}

// The methods below expect mu to be held, except worker and ring, which take it.

func (q *Queue[K]) add(key K) {
	if _, ok := q.queued[key]; ok || q.stopped {
		return
	}
	q.queued[key] = q.metrics.added()
	if _, ok := q.working[key]; !ok {
		q.enqueue(key)
	}
}

func (q *Queue[K]) enqueue(key K) {
	q.ready = append(q.ready, key)
	q.metrics.deeper()
	q.employ()
}

// employ starts a worker for each key without one, up to Options.Workers. A worker that is about to end counts
// until it has released mu, and it ends only when ready is empty: no key is left behind.
func (q *Queue[K]) employ() {
	if q.ctx == nil || q.stopped {
		return
	}
	for q.workers < min(q.Workers, len(q.working)+len(q.ready)) {
		q.workers++
		q.running.Go(q.worker)
	}
}

// wait adds a key when d has passed on a heap's clock.
func (q *Queue[K]) wait(l *later[K], key K, d time.Duration) {
	q.waitUntil(l, key, l.clock.Now().Add(d))
}

// waitUntil adds a key at a later time.
func (q *Queue[K]) waitUntil(l *later[K], key K, due time.Time) {
	if !q.stopped && l.add(key, due) {
		q.arm(l)
	}
}

// arm adds the keys of a heap that are due, and sets its timer for the next one.
func (q *Queue[K]) arm(l *later[K]) {
	for _, key := range l.arm(func() { q.ring(l) }) {
		q.add(key)
	}
}

// ring is called by a timer. A clock may call it while it holds a lock that the clock's methods take, and mu is
// held while these methods are called. Taking mu here could therefore deadlock; a goroutine takes it. rings is
// raised before ring returns, so that Busy has no gap between the timer and the Add.
func (q *Queue[K]) ring(l *later[K]) {
	q.rings.Add(1)
	go func() {
		defer q.rings.Add(-1)
		q.mu.Lock()
		defer q.mu.Unlock()
		if !q.stopped {
			l.disarm() // the timer has fired, perhaps before a key was due: arm must set a new one
			q.arm(l)
		}
	}()
}

// worker works on one key after the other, until none is left or the context has ended. It holds mu except during
// the work.
func (q *Queue[K]) worker() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.ready) > 0 && q.ctx.Err() == nil {
		key := q.take()
		q.mu.Unlock()
		q.work(q.ctx, key)
		q.mu.Lock()
		q.done(key)
	}
	q.workers--
}

// take moves the first key from ready to working.
func (q *Queue[K]) take() K {
	var none K
	key := q.ready[0]
	q.ready[0] = none
	q.ready = q.ready[1:]
	q.working[key] = q.metrics.taken(q.queued[key])
	delete(q.queued, key)
	return key
}

// done ends the work on a key. If the key was added meanwhile, it goes to the end of ready.
func (q *Queue[K]) done(key K) {
	q.metrics.done(q.working[key])
	delete(q.working, key)
	if _, again := q.queued[key]; again && !q.stopped {
		q.enqueue(key)
	}
}
