package controller

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/internal/series/seriestest"
)

func TestMetrics_AreCreatedAtTheirFirstUse(t *testing.T) {
	t.Parallel()
	m := &Metrics{}
	registry := prometheus.NewRegistry()
	require.NoError(t, registry.Register(m))
	counter := m.Counter("shared_total", "One for both.", "key")
	same := m.Counter("shared_total", "One for both.", "key")
	families, err := registry.Gather()
	require.NoError(t, err)
	require.Empty(t, families)
	counter().WithLabelValues("a").Inc()
	same().WithLabelValues("a").Inc()
	require.EqualValues(t, 2, seriestest.Value(t, registry, "shared_total", "key", "a"))
}

func TestMetrics_OfANilReceiverAreNotCollected(t *testing.T) {
	t.Parallel()
	var m *Metrics
	m.Counter("n_total", "")().WithLabelValues().Inc()
	m.Gauge("n", "")().WithLabelValues().Inc()
	m.Histogram("n_seconds", "", nil)().WithLabelValues().Observe(1)
	m.State("n_state", "", nil, func(func(float64, ...string)) {})
}

func TestMetrics_StateHasALimitedNumberOfSeries(t *testing.T) {
	t.Parallel()
	m := &Metrics{}
	objects := 10
	m.State("objects", "Objects by name.", []string{"namespace", "name"}, func(add func(float64, ...string)) {
		for i := range objects {
			add(1, "default", fmt.Sprint("n", i))
		}
		add(1, "default", "n0")
		add(1, "other", "other")
	})
	registry := prometheus.NewRegistry()
	require.NoError(t, registry.Register(m))
	require.EqualValues(t, 2, seriestest.Value(t, registry, "objects", "name", "n0"))
	require.EqualValues(t, 1, seriestest.Value(t, registry, "objects", "name", "other"))
	objects = 5000
	require.EqualValues(t, 2, seriestest.Value(t, registry, "objects", "name", "n0"), "the largest stay")
	families, err := registry.Gather()
	require.NoError(t, err)
	require.LessOrEqual(t, len(families[0].Metric), 1001)
	require.EqualValues(t, 5002, seriestest.Value(t, registry, "objects"), "none is lost")
	require.True(t, registry.Unregister(m), "another run may register its own")
}
