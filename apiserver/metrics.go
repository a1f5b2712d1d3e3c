package apiserver

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/coxswain-dev/coxswain/series"
)

// metrics bear the names and labels that Kubernetes' dashboards query. A dashboard would need all of their series at
// once only if everything were asked for at once; the bounds below keep /metrics at some hundred kilobytes.
// https://kubernetes.io/docs/reference/instrumentation/metrics/
type metrics struct {
	registry *prometheus.Registry
	requests *series.Recent[answered, prometheus.Counter]
	timings  *series.Recent[asked, *timing]
	running  *longRunningRequests
	current  *prometheus.GaugeVec
	events   *prometheus.CounterVec
	expiries *prometheus.CounterVec
}

// How many combinations of labels are shown of requests that were counted, and of those that were timed, which take
// thirty lines each.
const (
	maxCounted = 250
	maxTimed   = 32
)

// asked is what requests are told apart by.
type asked struct{ verb, group, version, resource, subresource, scope, dryRun string }

// answered is a request with what came of it.
type answered struct {
	asked
	code int
}

var (
	byRequest = []string{"verb", "group", "version", "resource", "subresource", "scope"}
	// ours is what tells this server's requests from those of aggregated ones, of which there are none.
	ours = prometheus.Labels{"component": "apiserver"}
)

func (a *asked) labels() []string {
	return []string{a.verb, a.group, a.version, a.resource, a.subresource, a.scope}
}

func newMetrics(s *Server) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		running:  &longRunningRequests{now: map[asked]int{}},
		current: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "apiserver_current_inflight_requests",
			Help: "Number of requests that are being served now, per request kind.",
		}, []string{"request_kind"}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_watch_events_total",
			Help: "Number of events sent in watch clients.",
		}, []string{"group", "version", "resource"}),
		expiries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "coxswain_ttl_deletions_total",
			Help: "Attempts to delete an object whose time to live had ended, by what became of them: deleted (or its deletion begun), refused or failed.",
		}, []string{"result"}),
	}
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name:        "apiserver_request_total",
		Help:        "Counter of apiserver requests broken out for each verb, dry run value, group, version, resource, scope, component, and HTTP response code.",
		ConstLabels: ours,
	}, append([]string{"code", "dry_run"}, byRequest...))
	values := func(a answered) []string {
		return append([]string{strconv.Itoa(a.code), a.dryRun}, a.labels()...)
	}
	m.requests = series.NewRecent(maxCounted,
		func(a answered) prometheus.Counter { return requests.WithLabelValues(values(a)...) },
		func(a answered) { requests.DeleteLabelValues(values(a)...) })
	timings := newTimings()
	m.timings = series.NewRecent(maxTimed, timings.begin, timings.end)
	m.registry.MustRegister(requests, timings.duration, timings.sli, timings.size, m.running, m.current, m.events, m.expiries,
		objectCounts{s}, lifetimeCounts{s}, s.admission, s.Store.Collector(), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// timings are the families of histograms; timing is what one combination of labels has of them.
type (
	timings struct{ duration, sli, size *prometheus.HistogramVec }
	timing  struct{ duration, sli, size prometheus.Observer }
)

func newTimings() *timings {
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		o := prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets, ConstLabels: ours}
		return prometheus.NewHistogramVec(o, append(labels, byRequest...))
	}
	seconds := []float64{0.001, 0.005, 0.025, 0.1, 0.5, 1, 5, 30} // 1, 5 and 30 are what Kubernetes' SLOs ask for
	return &timings{
		duration: histogram("apiserver_request_duration_seconds",
			"Response latency distribution in seconds for each verb, dry run value, group, version, resource, subresource, "+
				"scope and component.", seconds, "dry_run"),
		sli: histogram("apiserver_request_sli_duration_seconds",
			"Response latency distribution (not counting webhook duration and priority & fairness queue wait times) in "+
				"seconds for each verb, group, version, resource, subresource, scope and component.", seconds),
		size: histogram("apiserver_response_sizes",
			"Response size distribution in bytes for each group, version, verb, resource, subresource, scope and component.",
			prometheus.ExponentialBuckets(1000, 10, 5)),
	}
}

// begin makes the histograms of a combination. A dry run has only the one that tells it from others.
func (f *timings) begin(a asked) *timing {
	labels := a.labels()
	t := &timing{duration: f.duration.WithLabelValues(append([]string{a.dryRun}, labels...)...)}
	if a.dryRun == "" {
		t.sli, t.size = f.sli.WithLabelValues(labels...), f.size.WithLabelValues(labels...)
	}
	return t
}

func (f *timings) end(a asked) {
	labels := a.labels()
	f.duration.DeleteLabelValues(append([]string{a.dryRun}, labels...)...)
	if a.dryRun == "" {
		f.sli.DeleteLabelValues(labels...)
		f.size.DeleteLabelValues(labels...)
	}
}

func (t *timing) observe(took, waited time.Duration, bytes int64) {
	t.duration.Observe(took.Seconds())
	if t.sli != nil {
		t.sli.Observe((took - waited).Seconds())
		t.size.Observe(float64(bytes))
	}
}

func (m *metrics) inflight(method string) prometheus.Gauge {
	if method == http.MethodGet || method == http.MethodHead {
		return m.current.WithLabelValues("readOnly")
	}
	return m.current.WithLabelValues("mutating")
}

func (m *metrics) done(w *response, r *http.Request, took time.Duration) {
	a := askedFor(w.request, r)
	m.requests.Of(answered{a, w.code}).Inc()
	if a.verb == "WATCH" || a.verb == "CONNECT" {
		return
	}
	waited := time.Duration(0)
	if w.request != nil {
		waited = w.request.seat.Waited()
	}
	m.timings.Of(a).observe(took, waited, w.bytes)
}

func askedFor(r *request, hr *http.Request) asked {
	if r == nil {
		return asked{verb: methodLabel(hr.Method)}
	}
	a := asked{
		verb: verbLabel(r.verb), group: r.res.Group, version: r.res.Version, resource: r.res.Plural, subresource: r.subresource,
		scope: "cluster",
	}
	switch {
	case r.name != "" || r.verb == "create":
		a.scope = "resource"
	case r.namespace != "":
		a.scope = "namespace"
	}
	if r.query.Get("dryRun") != "" {
		a.dryRun = "All" // there is no other
	}
	return a
}

func verbLabel(verb string) string {
	switch verb {
	case "create":
		return "POST"
	case "update":
		return "PUT"
	}
	return strings.ToUpper(verb)
}

// longRunningRequests counts the watches that are open.
type longRunningRequests struct {
	mu  sync.Mutex
	now map[asked]int
}

var longRunningDesc = prometheus.NewDesc("apiserver_longrunning_requests",
	"Gauge of all active long-running apiserver requests broken out by verb, group, version, resource, scope and component.", byRequest, ours)

func (l *longRunningRequests) add(a asked, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.now[a] += n; l.now[a] == 0 {
		delete(l.now, a)
	}
}

// Describe implements prometheus.Collector.
func (*longRunningRequests) Describe(ch chan<- *prometheus.Desc) { ch <- longRunningDesc }

// Collect implements prometheus.Collector.
func (l *longRunningRequests) Collect(ch chan<- prometheus.Metric) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for a, n := range l.now {
		ch <- prometheus.MustNewConstMetric(longRunningDesc, prometheus.GaugeValue, float64(n), a.labels()...)
	}
}

// methodLabel keeps clients from making metrics by inventing methods.
func methodLabel(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions, http.MethodConnect, http.MethodTrace:
		return method
	}
	return "OTHER"
}

// objectCounts reports how many objects there are of each kind, counted when asked.
type objectCounts struct{ s *Server }

var objectCountsDesc = prometheus.NewDesc("apiserver_storage_objects",
	"Number of stored objects at the time of last check split by kind.", []string{"resource"}, nil)

func (objectCounts) Describe(ch chan<- *prometheus.Desc) { ch <- objectCountsDesc }

func (o objectCounts) Collect(ch chan<- prometheus.Metric) {
	for _, res := range o.s.Registry.Snapshot().Resources {
		if res.Review || res.Computed || res.View != nil {
			continue
		}
		ch <- prometheus.MustNewConstMetric(objectCountsDesc, prometheus.GaugeValue,
			float64(o.s.collection(res).Count()), res.GroupResource().String())
	}
}

func (s *Server) serveMetrics(w http.ResponseWriter, r *http.Request) error {
	all := append(prometheus.Gatherers{s.metrics.registry}, s.Metrics...)
	promhttp.HandlerFor(all, promhttp.HandlerOpts{}).ServeHTTP(w, r)
	return nil
}
