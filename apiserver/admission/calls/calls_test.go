package calls

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func done(webhook string, after int, outcome Outcome) Call {
	return Call{Configuration: "c", Webhook: webhook, Type: Mutating, Operation: "CREATE", Code: 200, Outcome: outcome,
		At: start.Add(time.Duration(after) * time.Second), Took: 20 * time.Millisecond}
}

func TestLog_ShowsTheLastCallsNewestFirst(t *testing.T) {
	t.Parallel()
	l := NewLog()
	for i := range 25 {
		l.Done(done("a", i, Allowed))
	}
	denied := done("b", 30, Denied)
	denied.Message, denied.Rejected = strings.Repeat("ä", 400), true
	l.Done(denied)
	report := l.Report()
	require.Len(t, report.Webhooks, 2)
	b, a := report.Webhooks[0], report.Webhooks[1]
	require.Equal(t, "b", b.Webhook)
	require.EqualValues(t, 1, b.Denied)
	require.True(t, utf8.ValidString(b.Recent[0].Message))
	require.Len(t, b.Recent[0].Message, 512+len("…"))
	require.EqualValues(t, 25, a.Allowed)
	require.Len(t, a.Recent, 10)
	require.Equal(t, start.Add(24*time.Second), a.Recent[0].At)
	require.Equal(t, start.Add(15*time.Second), a.Recent[9].At)
	require.Equal(t, 0.02, a.LastSeconds)
	a.Recent[0].Message = "changed" // the caller owns the report
	require.Empty(t, l.Report().Webhooks[1].Recent[0].Message)
}

func TestLog_IsBounded(t *testing.T) {
	t.Parallel()
	l := NewLog()
	var calling sync.WaitGroup
	for worker := range 4 {
		calling.Go(func() {
			for i := range 500 {
				c := done(fmt.Sprintf("%d-%d", worker, i), i, Failed)
				c.Code, c.Rejected, c.ErrorType = i*7, i%2 == 0, CallingWebhookError
				l.Done(c)
				l.Evaluated(Conditions{Name: c.Webhook, Of: "webhook", Type: Validating, Operation: "CREATE", Errors: 1})
				l.Report()
			}
		})
	}
	calling.Wait()
	require.Len(t, l.Report().Webhooks, maxWebhooks)
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(l))
	families, err := registry.Gather()
	require.NoError(t, err)
	require.Len(t, families, 6)
	for _, f := range families {
		require.Len(t, f.Metric, maxSeries, f.GetName())
	}
}

func BenchmarkDone(b *testing.B) {
	l := NewLog()
	c := done("a", 0, Allowed)
	b.ReportAllocs()
	for b.Loop() {
		l.Done(c)
	}
}
