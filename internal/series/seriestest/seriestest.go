// Package seriestest reads the values of metrics in tests.
package seriestest

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
)

// Value returns the sum of the metric's series that have these label values, given as pairs of name and value. The
// value of a histogram is the number of its observations.
func Value(t testing.TB, from prometheus.Gatherer, name string, labels ...string) float64 {
	t.Helper()
	sum := 0.0
	for _, m := range matching(t, from, name, labels) {
		sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
	}
	return sum
}

// Sum returns the sum of the observations of a histogram's series.
func Sum(t testing.TB, from prometheus.Gatherer, name string, labels ...string) float64 {
	t.Helper()
	sum := 0.0
	for _, m := range matching(t, from, name, labels) {
		sum += m.GetHistogram().GetSampleSum()
	}
	return sum
}

func matching(t testing.TB, from prometheus.Gatherer, name string, labels []string) []*dto.Metric {
	t.Helper()
	families, err := from.Gather()
	require.NoError(t, err)
	var found []*dto.Metric
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.Metric {
			if hasLabels(m, labels) {
				found = append(found, m)
			}
		}
	}
	return found
}

func hasLabels(m *dto.Metric, labels []string) bool {
	values := map[string]string{}
	for _, l := range m.Label {
		values[l.GetName()] = l.GetValue()
	}
	for i := 0; i < len(labels); i += 2 {
		if value, ok := values[labels[i]]; !ok || value != labels[i+1] {
			return false
		}
	}
	return true
}
