// Package flowcontrol decides which requests are served now, which wait and which are rejected: API
// Priority and Fairness, by KEP-1040 and
// https://kubernetes.io/docs/concepts/cluster-administration/flow-control/.
//
// A request is classified (classify.go): the first flow schema that matches it, by precedence and name, gives it a
// priority level and, by the schema's distinguisher, a flow. A level (level.go) has a number of seats, and a
// request that is served holds as many of them as it is wide (width.go: a list by its number of objects). If none
// are free, a level of type Reject rejects the request, and one of type Queue lets it wait (queue.go) in the
// shortest of a few queues that its flow has been dealt by shuffle sharding (shard.go). configure.go computes the
// seats of the levels from their shares; every ten seconds levels without demand lend seats to levels with demand
// (borrow.go). metrics.go and dump.go show the state.
//
// limits.go and slots.go have simpler limits, which are independent of the levels. The package knows neither HTTP nor
// the place where the configuration is stored.
//
// # Concurrency
//
// A request meets one lock, its level's: to start, to give up and to finish. The configuration that it is classified
// by is immutable, behind an atomic pointer. Configuring and adjusting hold Dispatcher.mu, and take the levels' locks
// one at a time: Dispatcher.mu comes before level.mu, and no two levels are locked together.
package flowcontrol

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	flowv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/utils/clock"
)

// adjustEvery is how often the levels' seats follow the demand (borrowingAdjustmentPeriod in KEP-1040).
const adjustEvery = 10 * time.Second

// Options make a Dispatcher. All but Clock are required.
type Options struct {
	// Seats is the number of seats that the levels share.
	Seats int
	// QueueWait is the longest time that a request waits for its seats.
	QueueWait time.Duration
	// Levels and Schemas are the mandatory objects, exempt and catch-all. They are used while the objects of these
	// names are missing.
	Levels  []*flowv1.PriorityLevelConfiguration
	Schemas []*flowv1.FlowSchema
	Clock   clock.WithTicker
}

// Dispatcher gives requests their seats. Its methods are safe for concurrent use.
type Dispatcher struct {
	Options
	began   time.Time
	metrics *metrics
	config  atomic.Pointer[configuration] // replaced with mu held, loaded without it

	mu sync.Mutex // held to configure, adjust or read all levels
	// levels has the configured levels, and removed ones that are still busy.
	levels map[string]*level
}

// New returns a Dispatcher with the mandatory configuration only.
func New(o Options) *Dispatcher {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	d := &Dispatcher{Options: o, began: o.Clock.Now(), metrics: newMetrics(), levels: map[string]*level{}}
	d.Configure(nil, nil)
	return d
}

// Run adjusts the levels' seats to the demand until ctx ends.
func (d *Dispatcher) Run(ctx context.Context) {
	ticker := d.Clock.NewTicker(adjustEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C():
			d.mu.Lock()
			d.forgetIdle()
			d.adjust()
			d.mu.Unlock()
		case <-ctx.Done():
			return
		}
	}
}

// Request is a request in the terms of KEP-1040: its attributes and, after Classify, its schema and
// level. It is for one goroutine, and must not be copied between Classify and Finish. Reset it to the
// zero value before it is classified once more.
type Request struct {
	User   string
	Groups []string
	// Verb is an API verb or, where Path is set, a method in lower case.
	Verb string
	// Path is set for a request that is not on a resource; the fields below are empty then.
	Path string
	// Namespace is "" for all namespaces, and for cluster-scoped objects.
	Group, Version, Resource, Subresource, Namespace, Name string
	// Seats is the estimated width of the request. Less than one counts as one, and a level gives a
	// request at most 15 % of its seats.
	Seats int

	// The request's goroutine sets schema and flow before the level knows the request. Afterwards the level's lock
	// guards all fields below until the request begins or is rejected. Then arrived, began and width do not change
	// any more, and the goroutine reads them without the lock.
	schema  *schema
	flow    string // the value that identifies the flow within the schema
	arrived time.Duration
	began   time.Duration
	width   int
	queue   *queue
	ready   chan struct{} // closed, with the level's lock held, when it may begin; nil if it need not wait
	state   state
	// next and previous link the queue while the request waits, and the served requests after that.
	next, previous *Request
}

// state is the progress of a request. The level's lock guards it. Its transitions are arrived, waiting, executing and
// finished, in this order; waiting and executing may be skipped. A finished request may start again.
type state uint8

const (
	arrived state = iota
	waiting
	executing
	finished
)

// Classification identifies the objects that apply to a request. The UIDs are empty for mandatory
// objects that are missing.
type Classification struct{ Schema, SchemaUID, Level, LevelUID string }

// Classify finds the request's schema and level. It must be called once, before Start.
func (d *Dispatcher) Classify(r *Request) Classification {
	s := d.config.Load().classify(r)
	r.schema = s
	return Classification{Schema: s.name, SchemaUID: s.uid, Level: s.level.name, LevelUID: s.levelUID}
}

// Start returns nil when the request may be served; the caller must then call Finish. Otherwise it
// returns a *Rejection: at once, when the request has waited too long, or when ctx is done.
func (d *Dispatcher) Start(ctx context.Context, r *Request) error {
	l := r.schema.level
	if r.schema.distinguish != nil {
		r.flow = r.schema.distinguish(r)
	}
	wait, err := l.start(d.now(), r)
	switch {
	case err != nil:
		r.schema.metrics.reject(err.Reason)
		return err
	case wait:
		if err := d.await(ctx, r); err != nil {
			return err
		}
	}
	r.schema.metrics.dispatch(r)
	return nil
}

// await waits for the seats of a request that is in a queue. If the request gets its seats at the same moment as it
// times out, leave decides, under the level's lock.
func (d *Dispatcher) await(ctx context.Context, r *Request) error {
	select {
	case <-r.ready: // at once
		return nil
	default:
	}
	timer := d.Clock.NewTimer(d.QueueWait)
	defer timer.Stop()
	reason := TimedOut
	select {
	case <-r.ready:
		return nil
	case <-timer.C():
	case <-ctx.Done():
		if ctx.Err() == context.Canceled {
			reason = Cancelled
		}
	}
	if !r.schema.level.leave(d.now(), r, reason) {
		return nil // it was given seats meanwhile
	}
	r.schema.metrics.giveUp(reason, d.now()-r.arrived)
	return &Rejection{Reason: reason}
}

// Finish releases the seats. It may be called again, and for a request that has not been started. After it, a request
// may Start again, such as after it has waited for memory.
//
// It reads r.state without the lock: the state of a request that executes is changed only here.
func (d *Dispatcher) Finish(r *Request) {
	if r.schema == nil || r.state != executing {
		return
	}
	now := d.now()
	r.schema.level.finish(now, r)
	r.schema.metrics.finish(r, now-r.began)
}

// Executing reports whether the request holds its seats. Only the goroutine that started it may call it, and not while
// another one may finish it.
func (r *Request) Executing() bool { return r.state == executing }

// Waited returns how long the request was in a queue before it was served. Only the goroutine that started
// it may call it.
func (r *Request) Waited() time.Duration {
	if r.schema == nil || r.schema.level.exempt {
		return 0
	}
	return max(0, r.began-r.arrived)
}

// now returns the time since the Dispatcher was made.
func (d *Dispatcher) now() time.Duration { return d.Clock.Since(d.began) }

// The reasons why a request is not served, as apiserver_flowcontrol_rejected_requests_total has them.
const (
	QueueFull        = "queue-full"
	ConcurrencyLimit = "concurrency-limit" // of a level that does not queue
	TimedOut         = "time-out"
	Cancelled        = "cancelled"
)

// Rejection is the error of a request that is not served.
type Rejection struct{ Reason string }

func (r *Rejection) Error() string { return "too many requests: " + r.Reason }
