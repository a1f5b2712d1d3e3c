package health_test

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/apiserver/health"
)

func TestReport_ListsChecksIfOneFailsOrTheClientAsks(t *testing.T) {
	t.Parallel()
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
		code, text := health.Report(t.Context(), c.query, "readyz", c.checks, slog.New(slog.DiscardHandler))
		require.Equal(t, c.code, code)
		require.Equal(t, c.text, string(text))
	}
}
