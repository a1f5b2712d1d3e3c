package endpointslice

import (
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
	"github.com/coxswain-dev/coxswain/controllers/lib/endpointslices"
)

const subsystem = "endpoint_slice_controller"

// metrics have the names of kube-controller-manager's.
type metrics struct {
	*endpointslices.Metrics
	syncs   func() *prometheus.CounterVec
	perSync func() *prometheus.HistogramVec
}

func newMetrics(m *controller.Metrics, services corelisters.ServiceLister) *metrics {
	m.State(subsystem+"_services_count_by_traffic_distribution",
		"Number of Services using some specific trafficDistribution", []string{"traffic_distribution"},
		func(add func(float64, ...string)) {
			all, _ := services.List(labels.Everything()) // a lister returns no errors
			for _, svc := range all {
				if svc.Spec.TrafficDistribution != nil {
					add(1, *svc.Spec.TrafficDistribution)
				}
			}
		})
	return &metrics{
		Metrics: endpointslices.NewMetrics(m, subsystem, "Service"),
		syncs:   m.Counter(subsystem+"_syncs", "Number of EndpointSlice syncs", "result"),
		perSync: m.Histogram(subsystem+"_endpointslices_changed_per_sync",
			"Number of EndpointSlices changed on each Service sync", prometheus.DefBuckets,
			"topology", "traffic_distribution"),
	}
}

// finalized counts a sync of a Service that has written changes.
func (m *metrics) finalized(key string, svc *corev1.Service, c *endpointslices.Changes, err error) {
	changed := m.Finalized(key, c, false)
	result := "success"
	if err != nil {
		result = "error"
	}
	m.syncs().WithLabelValues(result).Inc()
	topology, distribution := "Disabled", ""
	if topologyAware(svc) {
		topology = "Auto"
	} else if svc.Spec.TrafficDistribution != nil {
		distribution = *svc.Spec.TrafficDistribution // validation allows few values
	}
	m.perSync().WithLabelValues(topology, distribution).Observe(float64(changed))
}
