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
	// soon is within which time a retry still counts as work that is left.
	soon = time.Second
	// recheck is how often the wall clock is read while a key waits for a moment: a timer does not notice that the
	// clock was set.
	recheck = 10 * time.Second
)

// Options configure a queue.
type Options struct {
	// Name is the queue's label in Metrics.
	Name string
	// Workers is how many keys are worked on at once; at least one.
	Workers int
	// MinRetry is the delay before the first retry of a key, and MaxRetry what it doubles to.
	MinRetry, MaxRetry time.Duration
	// Clock is that of AddAfter, AddAt and AddPeriodic. It has to be a clock.WithDelayedExecution, as those of
	// k8s.io/utils/clock are.
	Clock clock.WithTicker
	// Metrics may be nil.
	Metrics *Metrics
}

// Queue holds keys until they have been worked on. Its methods are safe for concurrent use.
type Queue[K comparable] struct {
	Options
	work    func(ctx context.Context, key K)
	metrics *queueMetrics // nil where nothing is measured

	mu      sync.Mutex
	ctx     context.Context // of the workers; nil before Start
	stopped bool
	workers int
	running sync.WaitGroup
	ready   []K             // wait for a worker, in order
	queued  map[K]time.Time // those in ready, and those to come again after the work at hand, with the time of Add
	working map[K]time.Time // since when
	failed  map[K]int       // how often in a row
	delayed *later[K]       // by Options.Clock
	moments *later[K]       // by Options.Clock's wall time: no time in it has a reading of the monotonic clock
	period  *later[K]       // by Options.Clock, as periodic work
	retried *later[K]       // by real time
	rings   atomic.Int64    // timers that have fired and whose keys are not added yet
}

// New returns a queue of keys for which work is called. It takes keys at once, and works on them after Start.
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
		q.metrics = o.Metrics.of(o.Name)
	}
	return q
}

// Start lets the workers begin. They end with ctx, as does the queue: it takes no more keys then.
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

// Wait returns when the context of Start has ended and the last worker has too.
func (q *Queue[K]) Wait() { q.running.Wait() }

// stop drops all keys that nobody works on.
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

// Add has a key worked on as soon as a worker is free. A key that waits for a worker already is not added again; one
// that is being worked on comes again afterwards.
func (q *Queue[K]) Add(key K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.add(key)
}

// AddAfter is Add when d has passed on the queue's clock. Of several times for a key the earliest counts.
func (q *Queue[K]) AddAfter(key K, d time.Duration) {
	if d <= 0 {
		q.Add(key)
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.wait(q.delayed, key, d)
}

// AddAt adds a key when the wall time of the queue's clock has reached a moment, also if that clock is set forwards or
// back meanwhile; the key may then come ten seconds late. Of several moments for a key the earliest counts. AddAt
// ignores any reading of the monotonic clock in t: a caller that compares t with the time must do so as well.
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

// AddPeriodic is AddAfter for a key that comes again and again, mostly to find nothing to do. A clock that is moved by
// hand does not stop for it (virtualtime.Periodic).
func (q *Queue[K]) AddPeriodic(key K, d time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.wait(q.period, key, d)
}

// Retry is Add after a delay in real time, which doubles with each Retry of the key until Forget. It has a random part,
// so that keys and servers that failed together do not come back together.
func (q *Queue[K]) Retry(key K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.failed[key]++
	q.metrics.retry()
	delay := backoff.After(q.failed[key], q.MinRetry, q.MaxRetry)
	q.wait(q.retried, key, wait.Jitter(delay, backoff.Jitter))
}

// Forget ends the series of a key's retries. One that is due later remains.
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

// Busy describes work that is left: a key that is worked on or waits for a worker, one whose timer has fired, or one
// that is to be retried within a second. It is "" where there is none.
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

// The methods below expect mu to be held.

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

// employ starts workers for keys that have none.
func (q *Queue[K]) employ() {
	if q.ctx == nil || q.stopped {
		return
	}
	for q.workers < min(q.Workers, len(q.working)+len(q.ready)) {
		q.workers++
		q.running.Go(q.worker)
	}
}

// wait adds a key when d has passed.
func (q *Queue[K]) wait(l *later[K], key K, d time.Duration) {
	q.waitUntil(l, key, l.clock.Now().Add(d))
}

// waitUntil adds a key at a later time.
func (q *Queue[K]) waitUntil(l *later[K], key K, at time.Time) {
	if !q.stopped && l.add(key, at) {
		q.arm(l)
	}
}

// arm adds the keys that are due, and sets the timer for the next one.
func (q *Queue[K]) arm(l *later[K]) {
	for _, key := range l.arm(func() { q.ring(l) }) {
		q.add(key)
	}
}

// ring is called by a timer. A clock may do so with a lock held that its methods take.
func (q *Queue[K]) ring(l *later[K]) {
	q.rings.Add(1)
	go func() {
		defer q.rings.Add(-1)
		q.mu.Lock()
		defer q.mu.Unlock()
		if !q.stopped {
			l.disarm() // the timer has fired, maybe before its key is due
			q.arm(l)
		}
	}()
}

// worker works until no key is left, or the context has ended.
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

func (q *Queue[K]) take() K {
	var none K
	key := q.ready[0]
	q.ready[0] = none
	q.ready = q.ready[1:]
	q.working[key] = q.metrics.taken(q.queued[key])
	delete(q.queued, key)
	return key
}

func (q *Queue[K]) done(key K) {
	q.metrics.done(q.working[key])
	delete(q.working, key)
	if _, again := q.queued[key]; again && !q.stopped {
		q.enqueue(key)
	}
}
