package endpointslices

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// Metrics are the metrics of a controller of EndpointSlices, with the names of kube-controller-manager's.
type Metrics struct {
	added, updated, removed func() *prometheus.HistogramVec
	changes                 func() *prometheus.CounterVec

	mu     sync.Mutex
	totals map[string]total // by the key of the owner, guarded by mu
	sum    total            // of all totals, guarded by mu
}

type total struct{ endpoints, slices, desiredSlices int32 }

// NewMetrics returns the metrics of a controller. subsystem is the prefix of their names; owner is the kind that owns
// slices.
func NewMetrics(m *controller.Metrics, subsystem, owner string) *Metrics {
	perSync := func(name, help string) func() *prometheus.HistogramVec {
		return m.Histogram(subsystem+"_endpoints_"+name+"_per_sync", help+" on each "+owner+" sync",
			prometheus.ExponentialBuckets(2, 2, 15))
	}
	e := &Metrics{
		added:   perSync("added", "Number of endpoints added"),
		updated: perSync("updated", "Number of endpoints updated"),
		removed: perSync("removed", "Number of endpoints removed"),
		changes: m.Counter(subsystem+"_changes", "Number of EndpointSlice changes", "operation"),
		totals:  map[string]total{},
	}
	for _, g := range []struct {
		name, help string
		value      func(total) int32
	}{
		{"endpoints_desired", "Number of endpoints desired", func(t total) int32 { return t.endpoints }},
		{"num_endpoint_slices", "Number of EndpointSlices", func(t total) int32 { return t.slices }},
		{"desired_endpoint_slices", "Number of EndpointSlices that would exist with perfect endpoint allocation",
			func(t total) int32 { return t.desiredSlices }},
	} {
		m.State(subsystem+"_"+g.name, g.help, nil, func(add func(float64, ...string)) {
			e.mu.Lock()
			defer e.mu.Unlock()
			add(float64(g.value(e.sum)))
		})
	}
	return e
}

// Forget removes an owner from the totals.
func (e *Metrics) Forget(key string) { e.set(key, total{}) }

func (e *Metrics) set(key string, t total) {
	e.mu.Lock()
	defer e.mu.Unlock()
	was := e.totals[key]
	e.sum.endpoints += t.endpoints - was.endpoints
	e.sum.slices += t.slices - was.slices
	e.sum.desiredSlices += t.desiredSlices - was.desiredSlices
	if t == (total{}) {
		delete(e.totals, key)
	} else {
		e.totals[key] = t
	}
}

// Finalized counts the changes of an owner after Finalize, and returns the number of changed slices. updates reports
// whether updated endpoints are counted, too.
func (e *Metrics) Finalized(key string, c *Changes, updates bool) (changed int) {
	e.set(key, total{endpoints: int32(c.endpoints), desiredSlices: int32(c.desiredSlices),
		slices: int32(len(c.existing) - len(c.Delete) + len(c.Create))})
	e.added().WithLabelValues().Observe(float64(c.added))
	e.removed().WithLabelValues().Observe(float64(c.removed))
	if updates {
		e.updated().WithLabelValues().Observe(float64(c.updated))
	}
	for operation, n := range map[string]int{"create": c.written.created, "update": c.written.updated,
		"delete": c.written.deleted} {
		if n > 0 {
			e.changes().WithLabelValues(operation).Add(float64(n))
			changed += n
		}
	}
	return changed
}
