package controller_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
	"github.com/coxswain-dev/coxswain/internal/client/informer"
)

// filled is a DoneChecker of a cache that the test fills.
type filled chan struct{}

func (f filled) Name() string          { return "a cache" }
func (f filled) Done() <-chan struct{} { return f }

func TestBusy_EndsWithTheLastDueKey(t *testing.T) {
	t.Parallel()
	client, clock := fake.NewClientset(), clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0))
	env := &controller.Env{
		Client:    func() kubernetes.Interface { return client },
		Informers: informer.NewFactory(client, informer.Options{}), Clock: clock,
		Log: slog.New(slog.DiscardHandler), Workers: func(string) int { return 1 },
	}
	reconciling, result := make(chan string), make(chan error)
	c := controller.NewWithBackoff(env, "web", func(_ context.Context, key string) error {
		reconciling <- key
		return <-result
	}, 10*time.Millisecond, time.Hour)
	idle := func() bool { return c.Busy(0) == "" }
	cache := make(filled)
	c.NeedsSync(cache)
	more := ""
	c.AddProbe(func(int64) string { return more })
	ctx, cancel := context.WithCancel(t.Context())
	c.Start(ctx)
	require.Equal(t, "its caches are being filled", c.Busy(0))
	close(cache)
	<-c.Started()
	require.Empty(t, c.Busy(0))
	more = "something else"
	require.Equal(t, "something else", c.Busy(0))
	more = ""

	c.EnqueueAfter("default/a", time.Hour)
	require.Empty(t, c.Busy(0))
	clock.Step(time.Hour)
	require.NotEmpty(t, c.Busy(0))
	require.Equal(t, "default/a", <-reconciling)
	require.Equal(t, "default/a is being worked on", c.Busy(0))
	result <- errors.New("refused")
	require.Equal(t, "default/a", <-reconciling, "it is tried again in real time")
	result <- nil
	require.Eventually(t, idle, time.Minute, time.Millisecond)
	cancel()
	c.Wait()
}
