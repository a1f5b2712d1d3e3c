package audit

import "time"

// Part is a part of the time that a request takes.
type Part int

// The parts of a request. Storage includes only writes, since reads come from memory.
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
	// slow is the duration above which a request's event shows its parts, as in kube-apiserver.
	slow = 500 * time.Millisecond
)

// Took adds d to a part. For validating webhooks, which run in parallel, it keeps the longest duration instead of
// the sum. It ignores requests that last as long as the client wants.
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

// Timer measures a part of a request.
type Timer struct {
	request *Request
	part    Part
	began   time.Duration // since the request arrived, which is cheaper to get than a Time
}

// Begin starts measuring a part. Timer.End stops it.
func (r *Request) Begin(p Part) Timer {
	if r == nil {
		return Timer{}
	}
	return Timer{r, p, time.Since(r.event.received)}
}

// End records the duration.
func (t Timer) End() {
	if t.request != nil {
		t.request.Took(t.part, time.Since(t.request.event.received)-t.began)
	}
}

// annotateLatency annotates the event of a slow request with the parts of its duration. r.mu must be held.
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
