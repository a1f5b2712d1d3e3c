// Package flowcontrol decides which requests are served now, which wait and which are refused: API
// Priority and Fairness, by KEP-1040 and
// https://kubernetes.io/docs/concepts/cluster-administration/flow-control/.
//
// A request is classified (classify.go): the first flow schema that matches it, by precedence and
// name, gives it a priority level and, by the schema's distinguisher, a flow. A level (level.go) has
// a number of seats, and a request that is served holds as many of them as it is wide. Where they are
// taken, a level of type Reject refuses, and one of type Queue lets the request wait (queue.go) in the
// shortest of a few queues that its flow has been dealt by shuffle sharding (shard.go). What the
// levels have is worked out from their shares (configure.go), and every ten seconds levels without
// demand lend seats to those with it (borrow.go). metrics.go and dump.go tell what is going on.
//
// Nothing here knows HTTP or where the configuration is stored.
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
	// Seats is what the levels share.
	Seats int
	// QueueWait is how long a request waits for its seats at most.
	QueueWait time.Duration
	// Levels and Schemas are the mandatory configuration, which holds whenever its objects are
	// missing: those named exempt and catch-all.
	Levels  []*flowv1.PriorityLevelConfiguration
	Schemas []*flowv1.FlowSchema
	Clock   clock.WithTicker
}

// Dispatcher gives requests their seats. Its methods are safe for concurrent use.
type Dispatcher struct {
	Options
	began   time.Time
	metrics *metrics
	config  atomic.Pointer[configuration]

	mu sync.Mutex // held by who configures, adjusts or looks at all levels
	// levels are those that are configured, and those that are not any longer but still busy.
	levels map[string]*level
}

// New begins with the mandatory configuration alone.
func New(o Options) *Dispatcher {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	d := &Dispatcher{Options: o, began: o.Clock.Now(), metrics: newMetrics(), levels: map[string]*level{}}
	d.Configure(nil, nil)
	return d
}

// Run lets seats follow the demand until ctx ends.
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

// Request is what wants to be served: who asks for what, in the terms of KEP-1040, and afterwards
// where it has been put. It is for one goroutine, and must stay where it is in memory from Classify
// to Finish. A second use begins with a zero value.
type Request struct {
	User   string
	Groups []string
	// Verb is an API verb or, where Path is set, a method in small letters.
	Verb string
	// Path is that of a request that is not on a resource; the fields below are empty then.
	Path string
	// Namespace is "" for all namespaces, and for what is in none.
	Group, Version, Resource, Subresource, Namespace, Name string
	// Seats is how wide the request would like to be. Less than one counts as one, and a level
	// does not give a request more than 15 % of what it has.
	Seats int

	schema  *schema
	flow    string // what distinguishes the flow from the schema's others
	arrived time.Duration
	began   time.Duration
	width   int
	queue   *queue
	ready   chan struct{} // closed when it may begin; nil if it need not wait
	state   state
	// next and previous are in the queue while the request waits, and among those that are served then.
	next, previous *Request
}

// state is how far a request has come. The level's lock guards it.
type state uint8

const (
	arrived state = iota
	waiting
	executing
	finished
)

// Classification is which objects judge a request. The UIDs are empty for mandatory objects that are missing.
type Classification struct{ Schema, SchemaUID, Level, LevelUID string }

// Classify finds the request's schema and level. It is to be called once, before Start.
func (d *Dispatcher) Classify(r *Request) Classification {
	s := d.config.Load().classify(r)
	r.schema = s
	return Classification{Schema: s.name, SchemaUID: s.uid, Level: s.level.name, LevelUID: s.levelUID}
}

// Start returns when the request may be served; Finish must follow then. Otherwise it returns a
// *Rejection: at once, when it has waited as long as it may, or when ctx is done.
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

// await waits for the seats of a request that is in a queue.
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

// Finish gives the seats back. It may be called again, and of a request that has not been started.
func (d *Dispatcher) Finish(r *Request) {
	if r.schema == nil || r.state != executing {
		return
	}
	now := d.now()
	r.schema.level.finish(now, r)
	r.schema.metrics.finish(r, now-r.began)
}

// Waited is how long the request was in a queue before it was served. Only the goroutine that started it may ask.
func (r *Request) Waited() time.Duration {
	if r.schema == nil || r.schema.level.exempt {
		return 0
	}
	return max(0, r.began-r.arrived)
}

// now counts from when the Dispatcher was made.
func (d *Dispatcher) now() time.Duration { return d.Clock.Since(d.began) }

// The reasons for which a request is not served, as apiserver_flowcontrol_rejected_requests_total has them.
const (
	QueueFull        = "queue-full"
	ConcurrencyLimit = "concurrency-limit" // of a level that does not queue
	TimedOut         = "time-out"
	Cancelled        = "cancelled"
)

// Rejection says why a request is not served.
type Rejection struct{ Reason string }

func (r *Rejection) Error() string { return "too many requests: " + r.Reason }
