package audit

import "github.com/prometheus/client_golang/prometheus"

// metrics holds the metrics, which have kube-apiserver's names.
type metrics struct {
	events   prometheus.Counter
	rejected prometheus.Counter
	errors   *prometheus.CounterVec
	level    *prometheus.CounterVec
	levels   []prometheus.Counter // of level, indexed by Level
}

func newMetrics() *metrics {
	opts := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Name: "apiserver_audit_" + name, Help: help}
	}
	m := &metrics{
		events: prometheus.NewCounter(opts("event_total",
			"Counter of audit events generated and sent to the audit backend.")),
		rejected: prometheus.NewCounter(opts("requests_rejected_total",
			"Counter of apiserver requests rejected due to an error in audit logging backend.")),
		errors: prometheus.NewCounterVec(opts("error_total", "Counter of audit events that failed to be audited "+
			"properly. Plugin identifies the plugin affected by the error."), []string{"plugin"}),
		level: prometheus.NewCounterVec(opts("level_total",
			"Counter of policy levels for audit events (1 per request)."), []string{"level"}),
	}
	for _, name := range levelNames {
		m.levels = append(m.levels, m.level.WithLabelValues(name))
	}
	return m
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.events, m.rejected, m.errors, m.level}
}

func (m *metrics) describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.all() {
		c.Describe(ch)
	}
}

func (m *metrics) collect(ch chan<- prometheus.Metric) {
	for _, c := range m.all() {
		c.Collect(ch)
	}
}
