package series

import (
	"fmt"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

func family() (*prometheus.CounterVec, *Recent[string, prometheus.Counter]) {
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "n"}, []string{"key"})
	return vec, NewRecent(3, func(key string) prometheus.Counter { return vec.WithLabelValues(key) },
		func(key string) { vec.DeleteLabelValues(key) })
}

// values returns a collector's values by the value of its only label.
func values(t testing.TB, c prometheus.Collector) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(c))
	families, err := registry.Gather()
	require.NoError(t, err)
	shown := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			shown[m.Label[0].GetValue()] = m.Counter.GetValue() + m.Gauge.GetValue()
		}
	}
	return shown
}

func TestRecent_KeepsTheMostRecentlyUsed(t *testing.T) {
	t.Parallel()
	vec, recent := family()
	for _, key := range []string{"a", "b", "c", "a", "d", "a"} {
		recent.Of(key).Inc()
	}
	require.Equal(t, map[string]float64{"a": 3, "c": 1, "d": 1}, values(t, vec))
	recent.Of("b").Inc()
	require.Equal(t, map[string]float64{"a": 3, "b": 1, "d": 1}, values(t, vec), "what comes back begins anew")
}

func TestRecent_IsBounded(t *testing.T) {
	t.Parallel()
	vec, recent := family()
	var all sync.WaitGroup
	for worker := range 4 {
		all.Go(func() {
			for i := range 500 {
				recent.Of(fmt.Sprint(i * (worker + 1) % 50)).Inc()
			}
		})
	}
	all.Wait()
	require.Len(t, values(t, vec), 3)
	require.Len(t, recent.known, 3)
}

func TestUsed_HidesUnusedCounters(t *testing.T) {
	t.Parallel()
	counters := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "n"}, []string{"key"})
	counters.WithLabelValues("never")
	counters.WithLabelValues("once").Inc()
	require.Equal(t, map[string]float64{"once": 1}, values(t, Used(counters)))
	gauges := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "n"}, []string{"key"})
	gauges.WithLabelValues("none").Set(0)
	require.Equal(t, map[string]float64{"none": 0}, values(t, Used(gauges)), "no work is what a gauge may have to tell")
	histograms := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "n"}, []string{"key"})
	histograms.WithLabelValues("never")
	histograms.WithLabelValues("once").Observe(1)
	require.Equal(t, map[string]float64{"once": 0}, values(t, Used(histograms)))
}

func BenchmarkRecent(b *testing.B) {
	_, recent := family()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			recent.Of("a").Inc()
		}
	})
}
