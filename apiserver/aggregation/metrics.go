package aggregation

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/coxswain-dev/coxswain/internal/series"
)

// maxCounted limits the combinations of APIService and reason that are counted. The most recent ones are kept.
const maxCounted = 250

// unavailability holds the metrics about unavailable APIServices, under kube-aggregator's names.
type unavailability struct {
	total   *prometheus.CounterVec
	counted *series.Recent[cause, prometheus.Counter]

	mu  sync.Mutex
	now map[string]bool // whether an APIService is unavailable, by name
}

type cause struct{ name, reason string }

var unavailableDesc = prometheus.NewDesc("aggregator_unavailable_apiservice",
	"Gauge of APIServices which are marked as unavailable broken down by APIService name.", []string{"name"}, nil)

func newUnavailability() *unavailability {
	u := &unavailability{now: map[string]bool{}, total: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "aggregator_unavailable_apiservice_total",
		Help: "Counter of APIServices which are marked as unavailable broken down by APIService name and reason.",
	}, []string{"name", "reason"})}
	u.counted = series.NewRecent(maxCounted,
		func(c cause) prometheus.Counter { return u.total.WithLabelValues(c.name, c.reason) },
		func(c cause) { u.total.DeleteLabelValues(c.name, c.reason) })
	return u
}

func (u *unavailability) count(name, reason string) { u.counted.Of(cause{name, reason}).Inc() }

func (u *unavailability) set(name string, unavailable bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.now[name] = unavailable
}

func (u *unavailability) forget(name string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.now, name)
}

// Describe implements prometheus.Collector.
func (a *Aggregation) Describe(ch chan<- *prometheus.Desc) {
	a.unavailable.total.Describe(ch)
	a.refused.Describe(ch)
	ch <- unavailableDesc
}

// Collect implements prometheus.Collector.
func (a *Aggregation) Collect(ch chan<- prometheus.Metric) {
	a.unavailable.total.Collect(ch)
	a.refused.Collect(ch)
	u := a.unavailable
	u.mu.Lock()
	defer u.mu.Unlock()
	for name, unavailable := range u.now {
		value := 0.0
		if unavailable {
			value = 1
		}
		ch <- prometheus.MustNewConstMetric(unavailableDesc, prometheus.GaugeValue, value, name)
	}
}
