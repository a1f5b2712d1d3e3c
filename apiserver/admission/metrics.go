package admission

import "github.com/prometheus/client_golang/prometheus"

// pluginMetrics holds the metrics of single plugins.
type pluginMetrics struct{ podSecurity *prometheus.CounterVec }

func newPluginMetrics() *pluginMetrics {
	return &pluginMetrics{podSecurity: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "pod_security_evaluations_total",
		Help: "Number of policy evaluations that occurred, not counting ignored or exempt requests.",
	}, []string{"decision", "policy_level", "policy_version", "mode", "request_operation", "resource", "subresource"})}
}
