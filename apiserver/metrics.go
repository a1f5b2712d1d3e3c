package apiserver

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// metrics bear the names that Kubernetes' dashboards query.
// https://kubernetes.io/docs/reference/instrumentation/metrics/
type metrics struct {
	registry *prometheus.Registry
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	size     *prometheus.HistogramVec
	current  *prometheus.GaugeVec
	watches  *prometheus.GaugeVec
	events   *prometheus.CounterVec
	expiries *prometheus.CounterVec
}

func newMetrics(s *Server) *metrics {
	byRequest := []string{"verb", "group", "version", "resource", "subresource", "scope"}
	m := &metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_request_total",
			Help: "Counter of apiserver requests broken out for each verb, dry run value, group, version, resource, scope, component, and HTTP response code.",
		}, append([]string{"code"}, byRequest...)),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "apiserver_request_duration_seconds",
			Help:    "Response latency distribution in seconds for each verb, group, version, resource, subresource and scope.",
			Buckets: []float64{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60},
		}, byRequest),
		size: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "apiserver_response_sizes",
			Help:    "Response size distribution in bytes for each group, version, verb, resource, subresource and scope.",
			Buckets: prometheus.ExponentialBuckets(1000, 10, 7),
		}, byRequest),
		current: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "apiserver_current_inflight_requests",
			Help: "Number of requests that are being served now, per request kind.",
		}, []string{"request_kind"}),
		watches: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "apiserver_longrunning_requests",
			Help: "Gauge of all active long-running apiserver requests broken out by verb, group, version, resource and scope.",
		}, byRequest),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_watch_events_total",
			Help: "Number of events sent in watch clients.",
		}, []string{"group", "version", "resource"}),
		expiries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "coxswain_ttl_deletions_total",
			Help: "Attempts to delete an object whose time to live had ended, by what became of them: deleted (or its deletion begun), refused or failed.",
		}, []string{"result"}),
	}
	m.registry.MustRegister(m.requests, m.duration, m.size, m.current, m.watches, m.events, m.expiries,
		objectCounts{s}, lifetimeCounts{s}, s.admission, s.Store.Collector(), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *metrics) inflight(method string) prometheus.Gauge {
	if method == http.MethodGet || method == http.MethodHead {
		return m.current.WithLabelValues("readOnly")
	}
	return m.current.WithLabelValues("mutating")
}

func (m *metrics) done(w *response, r *http.Request, took time.Duration) {
	labels := metricLabels(w.request, r)
	m.requests.WithLabelValues(append([]string{strconv.Itoa(w.code)}, labels...)...).Inc()
	if labels[0] != "WATCH" && labels[0] != "CONNECT" {
		m.duration.WithLabelValues(labels...).Observe(took.Seconds())
		m.size.WithLabelValues(labels...).Observe(float64(w.bytes))
	}
}

func metricLabels(r *request, hr *http.Request) []string {
	if r == nil {
		return []string{methodLabel(hr.Method), "", "", "", "", ""}
	}
	verb := r.verb
	switch verb {
	case "create":
		verb = "post"
	case "update":
		verb = "put"
	}
	scope := "cluster"
	switch {
	case r.name != "":
		scope = "resource"
	case r.namespace != "":
		scope = "namespace"
	}
	return []string{strings.ToUpper(verb), r.res.Group, r.res.Version, r.res.Plural, r.subresource, scope}
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
	promhttp.HandlerFor(s.metrics.registry, promhttp.HandlerOpts{}).ServeHTTP(w, r)
	return nil
}
