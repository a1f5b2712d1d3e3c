// Package metrics counts and times the requests of the API server. Kubernetes' dashboards query the same names and
// labels (https://kubernetes.io/docs/reference/instrumentation/metrics/).
//
// All labels come from the server, none from clients: the resources that it serves, and a few verbs, scopes and codes.
// A combination of them is counted until its resource is no longer served.
package metrics

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/internal/series"
)

// maxCounted and maxTimed bound the memory of the combinations of labels, about 1 kB for a counted and 4 kB for a timed
// one. A server with 1,000 custom resources that clients read, write and watch has fewer. Beyond these numbers, the
// least recently used combination starts from zero.
const (
	maxCounted = 50_000
	maxTimed   = 20_000
)

// maxCode is the largest HTTP status with a series of its own. Proxied servers choose theirs.
const maxCode = 600

// Request has the labels of a request.
type Request struct{ Verb, Group, Version, Resource, Subresource, Scope, DryRun string }

// answered is a request with the code of its response.
type answered struct {
	Request
	code int
}

var (
	byRequest = []string{"verb", "group", "version", "resource", "subresource", "scope"}
	// ours is the label of requests that reach this server, including requests that another server answers.
	ours = prometheus.Labels{"component": "apiserver"}
)

func (r *Request) labels() []string {
	return []string{r.Verb, r.Group, r.Version, r.Resource, r.Subresource, r.Scope}
}

// Requests are the metrics of all requests. Its methods are safe for concurrent use.
type Requests struct {
	all      []prometheus.Collector
	requests *series.Recent[answered, prometheus.Counter]
	ended    *series.Recent[answered, prometheus.Counter]
	timings  *series.Recent[Request, *timing]
	running  *longRunning
	current  *prometheus.GaugeVec
	events   *series.Recent[schema.GroupVersionResource, prometheus.Counter]
}

// New returns metrics that have counted no requests yet.
func New() *Requests {
	m := &Requests{
		running: &longRunning{now: map[Request]int{}},
		current: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "apiserver_current_inflight_requests",
			Help: "Number of requests that are being served now, per request kind.",
		}, []string{"request_kind"}),
	}
	events := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "apiserver_watch_events_total",
		Help: "Number of events sent in watch clients.",
	}, []string{"group", "version", "resource"})
	m.events = series.NewRecent(maxCounted,
		func(r schema.GroupVersionResource) prometheus.Counter {
			return events.WithLabelValues(r.Group, r.Version, r.Resource)
		},
		func(r schema.GroupVersionResource) { events.DeleteLabelValues(r.Group, r.Version, r.Resource) })
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "apiserver_request_total",
		Help: "Counter of apiserver requests broken out for each verb, dry run value, group, version, " +
			"resource, scope, component, and HTTP response code.",
		ConstLabels: ours,
	}, append([]string{"code", "dry_run"}, byRequest...))
	values := func(a answered) []string {
		return append([]string{strconv.Itoa(a.code), a.DryRun}, a.labels()...)
	}
	m.requests = series.NewRecent(maxCounted,
		func(a answered) prometheus.Counter { return requests.WithLabelValues(values(a)...) },
		func(a answered) { requests.DeleteLabelValues(values(a)...) })
	ended := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name:        "apiserver_request_terminations_total",
		Help:        "Number of requests which apiserver terminated in self-defense.",
		ConstLabels: ours,
	}, append([]string{"code"}, byRequest...))
	terminated := func(a answered) []string { return append([]string{strconv.Itoa(a.code)}, a.labels()...) }
	m.ended = series.NewRecent(maxCounted,
		func(a answered) prometheus.Counter { return ended.WithLabelValues(terminated(a)...) },
		func(a answered) { ended.DeleteLabelValues(terminated(a)...) })
	timings := newTimings()
	m.timings = series.NewRecent(maxTimed, timings.begin, timings.end)
	m.all = []prometheus.Collector{requests, ended, timings.duration, timings.sli, timings.size, m.running, m.current,
		events}
	return m
}

// Describe implements prometheus.Collector.
func (m *Requests) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.all {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (m *Requests) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.all {
		c.Collect(ch)
	}
}

// InFlight returns the gauge of requests that are being served: requests that read, or requests that write.
func (m *Requests) InFlight(method string) prometheus.Gauge {
	if method == http.MethodGet || method == http.MethodHead {
		return m.current.WithLabelValues("readOnly")
	}
	return m.current.WithLabelValues("mutating")
}

// UnderWay returns the number of all requests that are being served. Watches and other long-running requests do not
// count.
func (m *Requests) UnderWay() int {
	n := 0.
	for _, kind := range []string{"readOnly", "mutating"} {
		var now dto.Metric
		if err := m.current.WithLabelValues(kind).Write(&now); err == nil {
			n += now.GetGauge().GetValue()
		}
	}
	return int(n)
}

// Events counts the events of watches on a resource.
func (m *Requests) Events(group, version, resource string) prometheus.Counter {
	return m.events.Of(schema.GroupVersionResource{Group: group, Version: version, Resource: resource})
}

// Open counts n long-running requests as open, or as closed if n is negative.
func (m *Requests) Open(r Request, n int) { m.running.add(r, n) }

// Done records a request's response: its code, its duration, the part of it that the request waited for its seats, and
// the length of the body. Streams are counted and not timed.
func (m *Requests) Done(r Request, code int, took, waited time.Duration, bytes int64) {
	m.requests.Of(answered{r, min(max(code, 0), maxCode)}).Inc()
	if r.Verb != "WATCH" && r.Verb != "CONNECT" {
		m.timings.Of(r).observe(took, waited, bytes)
	}
}

// Forget removes the metrics of requests that gone accepts, such as those on a resource that is no longer served.
func (m *Requests) Forget(gone func(Request) bool) {
	m.requests.Forget(func(a answered) bool { return gone(a.Request) })
	m.ended.Forget(func(a answered) bool { return gone(a.Request) })
	m.timings.Forget(gone)
	m.events.Forget(func(r schema.GroupVersionResource) bool {
		return gone(Request{Group: r.Group, Version: r.Version, Resource: r.Resource})
	})
}

// Terminated counts a request that the server ended to protect itself: it was refused, took too long, or panicked.
func (m *Requests) Terminated(r Request, code int) {
	r.DryRun = ""
	m.ended.Of(answered{r, code}).Inc()
}

// Verb returns the label of a verb of the API.
func Verb(verb string) string {
	switch verb {
	case "create":
		return "POST"
	case "update":
		return "PUT"
	}
	return strings.ToUpper(verb)
}

// Method returns the label of a request that is not on a resource. Clients cannot create metrics by inventing methods.
func Method(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
		http.MethodOptions, http.MethodConnect, http.MethodTrace:
		return method
	}
	return "OTHER"
}

// longRunning counts the watches that are open.
type longRunning struct {
	mu  sync.Mutex
	now map[Request]int
}

var longRunningDesc = prometheus.NewDesc("apiserver_longrunning_requests",
	"Gauge of all active long-running apiserver requests broken out by verb, group, version, resource, scope and "+
		"component.", byRequest, ours)

func (l *longRunning) add(r Request, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.now[r] += n; l.now[r] == 0 {
		delete(l.now, r)
	}
}

// Describe implements prometheus.Collector.
func (*longRunning) Describe(ch chan<- *prometheus.Desc) { ch <- longRunningDesc }

// Collect implements prometheus.Collector.
func (l *longRunning) Collect(ch chan<- prometheus.Metric) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for r, n := range l.now {
		ch <- prometheus.MustNewConstMetric(longRunningDesc, prometheus.GaugeValue, float64(n), r.labels()...)
	}
}
