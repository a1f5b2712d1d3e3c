// Package fakeenv runs one controller on client-go's fake clientset and a simulated clock. It is for tests
// only.
//
// The fake clientset does not check preconditions, validation or rights, and sets no resourceVersions. Tests of
// these need the API server of package controllertest. Tests with an Env take milliseconds, and may be in the
// controller's package:
//
//	e := fakeenv.New(t, secret)
//	e.Start(New)
//	e.Pass(time.Hour)
//	require.Empty(t, e.Secrets())
package fakeenv

import (
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
	"github.com/coxswain-dev/coxswain/internal/client/informer"
)

// Clock has a wall time that a test can set independently of its timers.
type Clock struct {
	*clocktesting.FakeClock
	ahead atomic.Int64
}

// Now implements clock.PassiveClock.
func (c *Clock) Now() time.Time { return c.FakeClock.Now().Add(time.Duration(c.ahead.Load())) }

// Since implements clock.PassiveClock.
func (c *Clock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// SetAhead sets the wall time to be ahead of the time that has passed.
func (c *Clock) SetAhead(d time.Duration) { c.ahead.Store(int64(d)) }

// Env holds the fake API server and the dependencies of one controller.
type Env struct {
	testing.TB
	*controller.Env
	Fake  *fake.Clientset
	Clock *Clock

	// Registry has the controller's metrics.
	Registry *prometheus.Registry

	running *controller.Controller
	events  chan string
}

// New returns an Env with the objects in its API server.
func New(t testing.TB, objects ...runtime.Object) *Env {
	// Times in conditions are whole seconds.
	clock := &Clock{FakeClock: clocktesting.NewFakeClock(time.Date(2031, 5, 1, 8, 0, 0, 0, time.UTC))}
	e := &Env{TB: t, Fake: fake.NewClientset(objects...), Clock: clock, events: make(chan string, 1000)}
	e.Env = &controller.Env{
		Client: func() kubernetes.Interface { return e.Fake }, Reader: e.Fake,
		Informers: informer.NewFactory(e.Fake, informer.Options{}), Clock: clock,
		Recorder: func(string) record.EventRecorder { return &record.FakeRecorder{Events: e.events} },
		Log:      slog.New(slog.DiscardHandler), Workers: func(string) int { return 1 },
		Settings: controller.Settings{}.WithDefaults(), Metrics: &controller.Metrics{},
	}
	e.Registry = prometheus.NewRegistry()
	return e
}

// Start runs a controller until the test ends, and waits until it has handled all objects.
func (e *Env) Start(construct func(*controller.Env) (*controller.Controller, error)) {
	e.Helper()
	c, err := construct(e.Env)
	require.NoError(e, err)
	require.NoError(e, e.Registry.Register(e.Metrics))
	ctx := e.Context()
	e.Informers.StartWithContext(ctx)
	c.Start(ctx)
	e.Cleanup(func() {
		c.Wait()
		e.Informers.Shutdown()
	})
	<-c.Started()
	e.running = c
	e.settle()
}

// Pass advances the clock by seconds, and waits after each until the controller has no work left.
func (e *Env) Pass(d time.Duration) {
	e.Helper()
	for ; d > 0; d -= time.Second {
		e.Clock.Step(min(d, time.Second))
		e.settle()
	}
}

// Eventually waits until f holds as a result of a change of an object.
func (e *Env) Eventually(what string, f func() bool) {
	e.Helper()
	require.Eventually(e, f, time.Minute, time.Millisecond, what)
}

func (e *Env) settle() {
	e.Helper()
	rests := func() bool {
		work := e.running.Busy(0)
		return work == "" || strings.Contains(work, "will be tried again") // a failed key is retried with back-off
	}
	if !rests() {
		e.Eventually("the controller comes to rest", rests)
	}
}

// Events returns the events recorded since the last call, each as "Type Reason message".
func (e *Env) Events() (events []string) {
	for {
		select {
		case event := <-e.events:
			events = append(events, event)
		default:
			return events
		}
	}
}

// Writes returns the writes of a verb and a resource since the start.
func (e *Env) Writes(verb, resource string) (writes []clienttesting.Action) {
	for _, action := range e.Fake.Actions() {
		if action.Matches(verb, resource) {
			writes = append(writes, action)
		}
	}
	return writes
}
