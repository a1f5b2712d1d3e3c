package nodelifecycle

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// metrics have the names of kube-controller-manager's. The series of a zone are removed with its last Node.
type metrics struct {
	health, size, unhealthy func() *prometheus.GaugeVec
	evictions               func() *prometheus.CounterVec
	node, round             func() *prometheus.HistogramVec
}

func newMetrics(m *controller.Metrics) *metrics {
	return &metrics{
		health: m.Gauge("node_collector_zone_health", "Gauge measuring percentage of healthy nodes per zone.", "zone"),
		size:   m.Gauge("node_collector_zone_size", "Gauge measuring number of registered Nodes per zones.", "zone"),
		unhealthy: m.Gauge("node_collector_unhealthy_nodes_in_zone",
			"Gauge measuring number of not Ready Nodes per zones.", "zone"),
		evictions: m.Counter("node_collector_evictions_total",
			"Number of Node evictions that happened since current instance of NodeController started.", "zone"),
		node: m.Histogram("node_collector_update_node_health_duration_seconds",
			"Duration in seconds for NodeController to update the health of a single node.",
			prometheus.ExponentialBuckets(0.001, 4, 8)),
		round: m.Histogram("node_collector_update_all_nodes_health_duration_seconds",
			"Duration in seconds for NodeController to update the health of all nodes.",
			prometheus.ExponentialBuckets(0.01, 4, 8)),
	}
}

// zoneLabel returns the value of the label zone, in Kubernetes' form, for a result of zoneOf.
func zoneLabel(zone string) string {
	if zone == "/" {
		return ""
	}
	return strings.Replace(zone, "/", ":\x00:", 1)
}

func (m *metrics) counted(zone string, ready, unready int) {
	health := 100.0
	if n := ready + unready; n > 0 {
		health = 100 * float64(ready) / float64(n)
	}
	m.health().WithLabelValues(zoneLabel(zone)).Set(health)
	m.size().WithLabelValues(zoneLabel(zone)).Set(float64(ready + unready))
	m.unhealthy().WithLabelValues(zoneLabel(zone)).Set(float64(unready))
}

func (m *metrics) evicted(node *corev1.Node) {
	m.evictions().WithLabelValues(zoneLabel(zoneOf(node))).Inc()
}

func (m *metrics) forget(zone string) {
	for _, gauge := range []func() *prometheus.GaugeVec{m.health, m.size, m.unhealthy} {
		gauge().DeleteLabelValues(zoneLabel(zone))
	}
	m.evictions().DeleteLabelValues(zoneLabel(zone))
}
