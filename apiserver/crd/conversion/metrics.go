package conversion

import (
	"errors"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/coxswain-dev/coxswain/api/customresource"
	"github.com/coxswain-dev/coxswain/internal/series"
)

// The types of failures have Kubernetes' names.
const (
	callFailure      = "conversion_webhook_call_failure"
	malformedFailure = "conversion_webhook_malformed_response_failure"
	partialFailure   = "conversion_webhook_partial_response_failure"
	invalidFailure   = "conversion_webhook_invalid_converted_object_failure"
)

// maxSeries limits the conversions between versions of a definition that have their own series.
const maxSeries = 64

// labels identifies a conversion in the metrics.
type labels struct {
	definition, from, to string
	succeeded            bool
}

func labelsOf(obj *customresource.Object, to *customresource.Version) labels {
	return labels{definition: to.Definition().Name, from: obj.GroupVersionKind().Version, to: to.Name()}
}

func (l labels) values() []string {
	return []string{l.definition, l.from, l.to, strconv.FormatBool(l.succeeded)}
}

// metrics counts and times the calls of webhooks.
type metrics struct {
	requests  *prometheus.CounterVec
	durations *prometheus.HistogramVec
	byKind    *prometheus.HistogramVec
	kinds     *series.Recent[labels, prometheus.Observer]
}

func newMetrics() *metrics {
	byResult := []string{"result", "failure_type"}
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "apiserver_conversion_webhook_request_total",
			Help: "Counter for conversion webhook requests with success/failure and failure error type"}, byResult),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "apiserver_conversion_webhook_duration_seconds", Help: "Conversion webhook request latency",
			Buckets: []float64{0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 45, 60}}, byResult),
		byKind: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "apiserver_crd_conversion_webhook_duration_seconds",
			Help:    "CRD webhook conversion duration in seconds",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15)},
			[]string{"crd_name", "from_version", "to_version", "succeeded"}),
	}
	m.kinds = series.NewRecent(maxSeries,
		func(l labels) prometheus.Observer { return m.byKind.WithLabelValues(l.values()...) },
		func(l labels) { m.byKind.DeleteLabelValues(l.values()...) })
	return m
}

func (m *metrics) observe(l labels, took time.Duration, err error) {
	result, kind := "success", ""
	if err != nil {
		result = "failure"
		var f *failure
		if errors.As(err, &f) {
			kind = f.kind
		}
	}
	m.requests.WithLabelValues(result, kind).Inc()
	m.durations.WithLabelValues(result, kind).Observe(took.Seconds())
	l.succeeded = err == nil
	m.kinds.Of(l).Observe(took.Seconds())
}

// Describe implements prometheus.Collector.
func (w *Webhooks) Describe(ch chan<- *prometheus.Desc) {
	w.metrics.requests.Describe(ch)
	w.metrics.durations.Describe(ch)
	w.metrics.byKind.Describe(ch)
}

// Collect implements prometheus.Collector.
func (w *Webhooks) Collect(ch chan<- prometheus.Metric) {
	w.metrics.requests.Collect(ch)
	w.metrics.durations.Collect(ch)
	w.metrics.byKind.Collect(ch)
}
