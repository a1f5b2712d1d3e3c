package metrics_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/apiserver/metrics"
)

// scrape returns the text that a client of /metrics receives.
func scrape(t *testing.T, m *metrics.Requests) string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(m)
	w := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return w.Body.String()
}

func TestRequests_StreamsAreCountedAndNotTimed(t *testing.T) {
	t.Parallel()
	m := metrics.New()
	get := metrics.Request{Verb: "GET", Version: "v1", Resource: "pods", Scope: "resource"}
	watch := metrics.Request{Verb: "WATCH", Version: "v1", Resource: "pods", Scope: "cluster"}
	dry := metrics.Request{Verb: "POST", Version: "v1", Resource: "pods", Scope: "resource", DryRun: "All"}
	m.Done(get, http.StatusOK, 3*time.Second, 2900*time.Millisecond, 100)
	m.Done(watch, http.StatusOK, time.Hour, 0, 1<<20)
	m.Done(dry, http.StatusCreated, time.Second, 0, 100)
	m.Open(watch, 1)
	text := scrape(t, m)
	const labels = `group="",resource="pods",scope=`
	for _, line := range []string{
		`apiserver_longrunning_requests{component="apiserver",` + labels +
			`"cluster",subresource="",verb="WATCH",version="v1"} 1`,
		`apiserver_request_total{code="200",component="apiserver",dry_run="",` + labels +
			`"cluster",subresource="",verb="WATCH",version="v1"} 1`,
		`apiserver_request_total{code="200",component="apiserver",dry_run="",` + labels +
			`"resource",subresource="",verb="GET",version="v1"} 1`,
		`apiserver_request_total{code="201",component="apiserver",dry_run="All",` + labels +
			`"resource",subresource="",verb="POST",version="v1"} 1`,
		`apiserver_request_duration_seconds_bucket{component="apiserver",dry_run="",` + labels +
			`"resource",subresource="",verb="GET",version="v1",le="1"} 0`,
		`apiserver_request_sli_duration_seconds_bucket{component="apiserver",` + labels +
			`"resource",subresource="",verb="GET",version="v1",le="0.5"} 1`,
	} {
		require.Contains(t, text, line)
	}
	require.Equal(t, 2, strings.Count(text, "apiserver_request_duration_seconds_count"), "not the watch")
	require.Equal(t, 1, strings.Count(text, "apiserver_request_sli_duration_seconds_count"), "nor the dry run")
	m.Open(watch, -1)
	require.NotContains(t, scrape(t, m), "apiserver_longrunning_requests{")
}

// rate() and increase() need counters that do not start again while the server runs.
func TestRequests_CountUntilTheResourceIsGone(t *testing.T) {
	t.Parallel()
	m := metrics.New()
	request := func(i int) metrics.Request { return metrics.Request{Verb: "GET", Resource: fmt.Sprint(i % 1000)} }
	for i := range 2000 {
		m.Done(request(i), http.StatusOK, time.Second, 0, 0)
	}
	text := scrape(t, m)
	require.Equal(t, 1000, strings.Count(text, "apiserver_request_total{"))
	require.Equal(t, 1000, strings.Count(text, "apiserver_request_duration_seconds_count{"))
	require.Contains(t, text, `resource="7",scope="",subresource="",verb="GET",version=""} 2`)

	m.Forget(func(r metrics.Request) bool { return r != request(7) })
	text = scrape(t, m)
	require.Equal(t, 1, strings.Count(text, "apiserver_request_total{"))
	require.Equal(t, 1, strings.Count(text, "apiserver_response_sizes_count{"))
}

func TestRequests_CodesAreBounded(t *testing.T) {
	t.Parallel()
	m := metrics.New()
	for code := -5; code < 10_000; code += 5 {
		m.Done(metrics.Request{Verb: "GET"}, code, time.Second, 0, 0)
	}
	require.Equal(t, 121, strings.Count(scrape(t, m), "apiserver_request_total{"))
}

func TestMethod_IsOneOfAFewLabels(t *testing.T) {
	t.Parallel()
	require.Equal(t, "GET", metrics.Method(http.MethodGet))
	require.Equal(t, "OTHER", metrics.Method("BREW"))
	require.Equal(t, "POST", metrics.Verb("create"))
	require.Equal(t, "DELETECOLLECTION", metrics.Verb("deletecollection"))
}
