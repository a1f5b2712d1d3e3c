package audit

import "time"

// Part is a part of the time that a request takes.
type Part int

// The parts. A request's time in storage is that of its writes: reads come from memory.
const (
	Authentication Part = iota
	Authorization
	Queue
	MutatingWebhooks
	ValidatingWebhooks
	Storage
	Serialization
	ResponseWrite
	parts
)

var latencyKeys = [parts]string{"authentication", "authorization", "apf-queue-wait", "mutating-webhook",
	"validating-webhook", "etcd", "serialize-response-object", "response-write"}

const (
	latencyPrefix = "apiserver.latency.k8s.io/"
	// slow is how long a request takes of which it is said what took the time, as in kube-apiserver.
	slow = 500 * time.Millisecond
)

// Took notes that a part has taken so long. Of validating webhooks, which are called at the same time, the longest time
// counts, of other parts the sum. Of a request that goes on for as long as the client likes nothing is noted.
func (r *Request) Took(p Part, d time.Duration) {
	if r == nil || r.longRunning {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if p == ValidatingWebhooks {
		r.took[p] = max(r.took[p], d)
	} else {
		r.took[p] += d
	}
}

// Timer takes the time of a part of a request.
type Timer struct {
	of    *Request
	part  Part
	began time.Duration // after the request has arrived: less is read of the clock than for a time
}

// Begin starts a part, which Timer.End ends.
func (r *Request) Begin(p Part) Timer {
	if r == nil {
		return Timer{}
	}
	return Timer{r, p, time.Since(r.event.received)}
}

// End notes how long the part has taken.
func (t Timer) End() {
	if t.of != nil {
		t.of.Took(t.part, time.Since(t.of.event.received)-t.began)
	}
}

// annotateLatency says what a slow request has spent its time with. r.mu is held.
func (r *Request) annotateLatency() {
	total := time.Since(r.event.received)
	if r.longRunning || total <= slow {
		return
	}
	for p, d := range r.took {
		if d > 0 {
			r.annotate(latencyPrefix+latencyKeys[p], d.String())
		}
	}
	r.annotate(latencyPrefix+"total", total.String())
}
