package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/coxswain-dev/coxswain/api"
)

// Objects collects the number of stored objects of each kind. They are counted when asked.
type Objects struct {
	Registry *api.Registry
	// Count returns the number of a kind's objects.
	Count func(res *api.Resource) int
}

var objectsDesc = prometheus.NewDesc("apiserver_storage_objects",
	"Number of stored objects at the time of last check split by kind.", []string{"resource"}, nil)

// Describe implements prometheus.Collector.
func (Objects) Describe(ch chan<- *prometheus.Desc) { ch <- objectsDesc }

// Collect implements prometheus.Collector.
func (o Objects) Collect(ch chan<- prometheus.Metric) {
	for _, res := range o.Registry.Snapshot().Resources {
		if res.CreateOnly || res.Virtual || res.Conversion != nil {
			continue
		}
		ch <- prometheus.MustNewConstMetric(objectsDesc, prometheus.GaugeValue, float64(o.Count(res)),
			res.GroupResource().String())
	}
}
