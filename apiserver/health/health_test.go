package health_test

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/apiserver/health"
)

func TestReport_ListsChecksIfOneFailsOrTheClientAsks(t *testing.T) {
	t.Parallel()
	reporter := health.NewReporter(slog.New(slog.DiscardHandler))
	broken := health.Check{Name: "etcd", Run: func(context.Context) error { return errors.New("secret") }}
	for _, c := range []struct {
		query  url.Values
		checks []health.Check
		code   int
		text   string
	}{
		{nil, []health.Check{health.Ping}, 200, "ok"},
		{url.Values{"verbose": {""}}, []health.Check{health.Ping}, 200, "[+]ping ok\nreadyz check passed\n"},
		{nil, []health.Check{health.Ping, broken}, 500,
			"[+]ping ok\n[-]etcd failed: reason withheld\nreadyz check failed\n"},
		{url.Values{"exclude": {"etcd"}}, []health.Check{health.Ping, broken}, 200, "ok"},
		{url.Values{"exclude": {"etcd"}, "verbose": {""}}, []health.Check{health.Ping, broken}, 200,
			"[+]ping ok\n[+]etcd excluded: ok\nreadyz check passed\n"},
	} {
		code, text := reporter.Report(t.Context(), c.query, "readyz", c.checks)
		require.Equal(t, c.code, code)
		require.Equal(t, c.text, string(text))
	}
	require.NoError(t, testutil.GatherAndCompare(reporter, strings.NewReader(`
# HELP kubernetes_healthcheck This metric records the result of a single healthcheck.
# TYPE kubernetes_healthcheck gauge
kubernetes_healthcheck{name="etcd",type="readyz"} 0
kubernetes_healthcheck{name="ping",type="readyz"} 1
# HELP kubernetes_healthchecks_total This metric records the results of all healthcheck.
# TYPE kubernetes_healthchecks_total counter
kubernetes_healthchecks_total{name="etcd",status="error",type="readyz"} 1
kubernetes_healthchecks_total{name="ping",status="success",type="readyz"} 5
`)))
}
