package policy

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the metrics of one enforcer.
type metrics struct {
	duration *prometheus.HistogramVec
	failures prometheus.Counter
	policies prometheus.Gauge
	failing  prometheus.Gauge
	pods     *prometheus.GaugeVec
	ended    prometheus.Counter
}

func newMetrics() *metrics {
	return &metrics{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "coxswain_network_policy_sync_duration_seconds",
			Help:    "Time to write changes of objects, or all rules, to the kernel.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14),
		}, []string{"scope"}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "coxswain_network_policy_sync_failures_total",
			Help: "Transactions that the kernel rejected.",
		}),
		policies: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "coxswain_network_policy_policies", Help: "NetworkPolicies of the cluster.",
		}),
		failing: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "coxswain_network_policy_failing_policies",
			Help: "Directions of policies that allow no traffic, because they are too large or were rejected.",
		}),
		pods: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "coxswain_network_policy_isolated_pods",
			Help: "Pods of this machine that policies isolate, by direction.",
		}, []string{"direction"}),
		ended: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "coxswain_network_policy_ended_connections_total",
			Help: "Connections that ended because a later change of policies, pods or namespaces denies them.",
		}),
	}
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.duration, m.failures, m.policies, m.failing, m.pods, m.ended}
}

func (m *metrics) register(with prometheus.Registerer) error {
	for i, c := range m.all() {
		if err := with.Register(c); err != nil {
			for _, before := range m.all()[:i] {
				with.Unregister(before)
			}
			return err
		}
	}
	return nil
}

func (m *metrics) unregister(from prometheus.Registerer) {
	for _, c := range m.all() {
		from.Unregister(c)
	}
}

// synced records a transaction.
func (m *metrics) synced(whole bool, err error, took time.Duration) {
	scope := "changes"
	if whole {
		scope = "all"
	}
	m.duration.WithLabelValues(scope).Observe(took.Seconds())
	if err != nil {
		m.failures.Inc()
	}
}

// count updates the gauges from the compiler.
func (m *metrics) count(c *compiler) {
	m.policies.Set(float64(len(c.policies)))
	m.failing.Set(float64(len(c.failing)))
	for _, d := range directions {
		m.pods.WithLabelValues(d.String()).Set(float64(c.isolated[d]))
	}
}
