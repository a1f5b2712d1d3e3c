package ingress

import (
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/coxswain-dev/coxswain/internal/series"
)

// maxSeries limits the combinations of labels that are exposed, to the most recently used ones.
const maxSeries = 2000

// metrics have the names and labels of ingress-nginx, for its dashboards.
type metrics struct {
	requests    *prometheus.CounterVec
	duration    *prometheus.HistogramVec
	size        *prometheus.HistogramVec
	retries     prometheus.Counter
	refused     prometheus.Counter
	connections prometheus.GaugeFunc
	ingresses   prometheus.Gauge
	rebuild     prometheus.Histogram
	recent      *series.Recent[requestLabels, requestMetrics]
}

type requestLabels struct {
	host, ingress, namespace, path, service, status, method string
}

func (l requestLabels) values() []string {
	return []string{l.host, l.ingress, l.namespace, l.path, l.service, l.status, l.method}
}

type requestMetrics struct {
	requests       prometheus.Counter
	duration, size prometheus.Observer
}

func newMetrics(open func() int) *metrics {
	labels := []string{"host", "ingress", "namespace", "path", "service", "status", "method"}
	const prefix = "nginx_ingress_controller_"
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "requests",
			Help: "Requests, by the rule that routed them, status and method."}, labels),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: prefix + "request_duration_seconds",
			Help: "Time from a request's header to the end of its response.", Buckets: prometheus.DefBuckets}, labels),
		size: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: prefix + "response_size",
			Help: "Bytes of responses' bodies.", Buckets: prometheus.ExponentialBuckets(10, 10, 7)}, labels),
		retries: prometheus.NewCounter(prometheus.CounterOpts{Name: "coxswain_ingress_retries_total",
			Help: "Tries of requests on another endpoint, after one that failed."}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{Name: "coxswain_ingress_refused_connections_total",
			Help: "Connections beyond the limits, closed at once."}),
		connections: prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: prefix + "nginx_process_connections",
			Help: "Clients' connections.", ConstLabels: prometheus.Labels{"state": "active"}},
			func() float64 { return float64(open()) }),
		ingresses: prometheus.NewGauge(prometheus.GaugeOpts{Name: "coxswain_ingress_ingresses",
			Help: "Ingresses that are served."}),
		rebuild: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "coxswain_ingress_rebuild_duration_seconds",
			Help: "Time to bring the routing up to date.", Buckets: prometheus.ExponentialBuckets(0.0001, 4, 8)}),
	}
	m.recent = series.NewRecent(maxSeries, func(l requestLabels) requestMetrics {
		v := l.values()
		return requestMetrics{m.requests.WithLabelValues(v...), m.duration.WithLabelValues(v...),
			m.size.WithLabelValues(v...)}
	}, func(l requestLabels) {
		v := l.values()
		m.requests.DeleteLabelValues(v...)
		m.duration.DeleteLabelValues(v...)
		m.size.DeleteLabelValues(v...)
	})
	return m
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.requests, m.duration, m.size, m.retries, m.refused, m.connections, m.ingresses,
		m.rebuild}
}

func (m *metrics) register(r prometheus.Registerer) error {
	for _, c := range m.all() {
		if err := r.Register(c); err != nil {
			return err
		}
	}
	return nil
}

func (m *metrics) unregister(r prometheus.Registerer) {
	for _, c := range m.all() {
		r.Unregister(c)
	}
}

// methods are the values of the label "method"; any other method is "OTHER".
var methods = []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodHead, http.MethodPatch,
	http.MethodDelete, http.MethodOptions, http.MethodConnect, http.MethodTrace}

func (m *metrics) observe(method string, r *route, status int, took time.Duration, size int64) {
	if !slices.Contains(methods, method) {
		method = "OTHER"
	}
	l := requestLabels{status: strconv.Itoa(status), method: method}
	if r != nil {
		l.host, l.path, l.service = r.host, r.path, r.service
		l.ingress, l.namespace = r.ingress.Name, r.ingress.Namespace
	}
	recent := m.recent.Of(l)
	recent.requests.Inc()
	recent.duration.Observe(took.Seconds())
	recent.size.Observe(float64(size))
}
