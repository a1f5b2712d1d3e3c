package controller

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics has the metrics of all controllers of one run. A metric is created at its first use, so that unused ones have
// no cost. It is a prometheus.Collector and safe for concurrent use. A nil *Metrics returns metrics that it does not
// collect.
type Metrics struct {
	// mu guards both fields. Their elements are never changed.
	mu     sync.Mutex
	used   map[string]prometheus.Collector // by name: controllers with the same code share their metrics
	states []state
}

// Counter returns a function that returns the counter with this name.
func (m *Metrics) Counter(name, help string, labels ...string) func() *prometheus.CounterVec {
	return atFirstUse(m, name, func() *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	})
}

// Gauge returns a function that returns the gauge with this name.
func (m *Metrics) Gauge(name, help string, labels ...string) func() *prometheus.GaugeVec {
	return atFirstUse(m, name, func() *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	})
}

// Histogram returns a function that returns the histogram with this name.
func (m *Metrics) Histogram(name, help string, buckets []float64,
	labels ...string) func() *prometheus.HistogramVec {
	return atFirstUse(m, name, func() *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	})
}

func atFirstUse[C prometheus.Collector](m *Metrics, name string, create func() C) func() C {
	return sync.OnceValue(func() C {
		if m == nil {
			return create()
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if c, ok := m.used[name].(C); ok {
			return c
		}
		if m.used == nil {
			m.used = map[string]prometheus.Collector{}
		}
		c := create()
		m.used[name] = c
		return c
	})
}

// maxStates is the number of series of a metric of State, beside the one for all others.
const maxStates = 1000

// maxLabels is the number of labels of a metric of State.
const maxLabels = 3

// State adds a gauge that is computed from caches when it is collected. compute calls add with the label values of each
// object; calls with the same values are summed. Clients name objects, so the number of series is limited: if there are
// more than 1,000, the ones with the smallest values are summed in a series with the label values "other".
func (m *Metrics) State(name, help string, labels []string, compute func(add func(n float64, values ...string))) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.states = append(m.states, state{prometheus.NewDesc(name, help, labels, nil), len(labels), compute})
}

type state struct {
	desc    *prometheus.Desc
	labels  int
	compute func(add func(n float64, values ...string))
}

type stateValue struct {
	labels [maxLabels]string
	n      float64
}

func (s *state) collect(ch chan<- prometheus.Metric) {
	sums := map[[maxLabels]string]float64{}
	s.compute(func(n float64, values ...string) {
		var key [maxLabels]string
		copy(key[:], values)
		sums[key] += n
	})
	values := make([]stateValue, 0, len(sums))
	for labels, n := range sums {
		values = append(values, stateValue{labels, n})
	}
	if len(values) > maxStates {
		slices.SortFunc(values, func(a, b stateValue) int {
			return cmp.Or(cmp.Compare(b.n, a.n), slices.Compare(a.labels[:], b.labels[:]))
		})
		others := stateValue{labels: [maxLabels]string{"other", "other", "other"}}
		for _, v := range values[maxStates:] {
			others.n += v.n
		}
		values = slices.DeleteFunc(values[:maxStates], func(v stateValue) bool {
			same := slices.Equal(v.labels[:s.labels], others.labels[:s.labels])
			if same {
				others.n += v.n
			}
			return same
		})
		values = append(values, others)
	}
	for _, v := range values {
		ch <- prometheus.MustNewConstMetric(s.desc, prometheus.GaugeValue, v.n, v.labels[:s.labels]...)
	}
}

// Describe implements prometheus.Collector with the metrics that exist from the beginning.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.states {
		ch <- s.desc
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	used, states := slices.Collect(maps.Values(m.used)), slices.Clone(m.states)
	m.mu.Unlock()
	for _, c := range used {
		c.Collect(ch)
	}
	for _, s := range states {
		s.collect(ch)
	}
}
