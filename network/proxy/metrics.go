package proxy

import (
	"errors"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the metrics of kube-proxy that apply here, with its names.
type metrics struct {
	duration, full, partial *prometheus.HistogramVec // by family
	programming             *prometheus.HistogramVec
	synced, queued          *prometheus.GaugeVec
	failures                *prometheus.CounterVec
	endpointChanges         prometheus.Counter
	serviceChanges          prometheus.Counter
	endpointsPending        prometheus.Gauge
	servicesPending         prometheus.Gauge
	noLocal                 *prometheus.GaugeVec
	flowsDuration           *prometheus.HistogramVec
	flowsDeleted            *prometheus.CounterVec

	all []prometheus.Collector
}

func newMetrics(h *Health) *metrics {
	m := &metrics{}
	byFamily, none := []string{"ip_family"}, []string(nil)
	m.duration = m.histogram("sync_proxy_rules_duration_seconds", "SyncProxyRules latency in seconds",
		syncBuckets, byFamily)
	m.full = m.histogram("sync_full_proxy_rules_duration_seconds",
		"SyncProxyRules latency in seconds for full resyncs", syncBuckets, byFamily)
	m.partial = m.histogram("sync_partial_proxy_rules_duration_seconds",
		"SyncProxyRules latency in seconds for partial resyncs", syncBuckets, byFamily)
	m.programming = m.histogram("network_programming_duration_seconds",
		"In Cluster Network Programming Latency in seconds", programmingBuckets, byFamily)
	m.synced = m.gauge("sync_proxy_rules_last_timestamp_seconds", "The last time proxy rules were successfully synced",
		byFamily)
	m.queued = m.gauge("sync_proxy_rules_last_queued_timestamp_seconds",
		"The last time a sync of proxy rules was queued",
		byFamily)
	m.failures = m.counter("sync_proxy_rules_nftables_sync_failures_total",
		"Cumulative proxy nftables sync failures", byFamily)
	m.endpointChanges = m.counter("sync_proxy_rules_endpoint_changes_total",
		"Cumulative proxy rules Endpoint changes", none).WithLabelValues()
	m.serviceChanges = m.counter("sync_proxy_rules_service_changes_total",
		"Cumulative proxy rules Service changes", none).WithLabelValues()
	m.endpointsPending = m.gauge("sync_proxy_rules_endpoint_changes_pending",
		"Pending proxy rules Endpoint changes", none).WithLabelValues()
	m.servicesPending = m.gauge("sync_proxy_rules_service_changes_pending",
		"Pending proxy rules Service changes", none).WithLabelValues()
	m.noLocal = m.gauge("sync_proxy_rules_no_local_endpoints_total",
		"Number of services with a Local traffic policy and no endpoints", []string{"traffic_policy"})
	m.flowsDuration = m.histogram("conntrack_reconciler_sync_duration_seconds",
		"ReconcileConntrackFlowsLatency latency in seconds", syncBuckets, byFamily)
	m.flowsDeleted = m.counter("conntrack_reconciler_deleted_entries_total",
		"Cumulative conntrack flows deleted by conntrack reconciler", byFamily)
	m.all = append(m.all, h.healthz, h.livez)
	return m
}

var (
	syncBuckets = prometheus.ExponentialBuckets(0.001, 2, 15)
	// programmingBuckets are the buckets of the SLO for network programming, up to 5 minutes.
	programmingBuckets = slices.Concat(prometheus.LinearBuckets(0.25, 0.25, 2), prometheus.LinearBuckets(1, 1, 59),
		prometheus.LinearBuckets(60, 5, 12), prometheus.LinearBuckets(120, 30, 7))
)

func (m *metrics) histogram(name, help string, buckets []float64, labels []string) *prometheus.HistogramVec {
	o := prometheus.HistogramOpts{Name: "kubeproxy_" + name, Help: help, Buckets: buckets}
	h := prometheus.NewHistogramVec(o, labels)
	m.all = append(m.all, h)
	return h
}

func (m *metrics) gauge(name, help string, labels []string) *prometheus.GaugeVec {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "kubeproxy_" + name, Help: help}, labels)
	m.all = append(m.all, g)
	return g
}

func (m *metrics) counter(name, help string, labels []string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kubeproxy_" + name, Help: help}, labels)
	m.all = append(m.all, c)
	return c
}

func (m *metrics) register(r prometheus.Registerer) error {
	var failed error
	for _, c := range m.all {
		failed = errors.Join(failed, r.Register(c))
	}
	return failed
}

func (m *metrics) unregister(r prometheus.Registerer) {
	for _, c := range m.all {
		r.Unregister(c)
	}
}

// committed observes a commit of a family's table.
func (m *metrics) committed(f family, whole bool, took time.Duration, now time.Time) {
	scope := m.partial
	if whole {
		scope = m.full
	}
	m.duration.WithLabelValues(f.String()).Observe(took.Seconds())
	scope.WithLabelValues(f.String()).Observe(took.Seconds())
	m.synced.WithLabelValues(f.String()).Set(float64(now.UnixNano()) / 1e9)
}
