package testenv

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/apiserver/pki"
	"github.com/coxswain-dev/coxswain/internal/clock/virtualtime"
)

// Clock is a clock that is moved by hand: see WithFakeTime.
type Clock = virtualtime.Clock

// NewClock returns a clock that stands at a time.
func NewClock(now time.Time) *Clock { return virtualtime.New(now) }

// WithFakeTime makes all parts of the control plane use a clock that stands still until the test moves it.
//
//	clock := testenv.NewClock(time.Date(2031, 5, 1, 8, 0, 0, 0, time.UTC))
//	env := testenv.StartEnvironment(t, testenv.WithFakeTime(clock))
//	...
//	clock.Step(24 * time.Hour) // CronJobs run, times to live end, pods leave Nodes that are silent
//
// A step goes from one due moment to the next, and at each of them waits until the control plane is idle (Settle),
// so that the same steps have the same outcome. It knows the code under test by its requests alone: for an operator
// that uses the same clock, add a function that waits for it (Clock.AddRest).
//
// Periodic work, such as heartbeats of Nodes and the rounds of an autoscaler, is done at these moments too: at its
// intervals for the first two minutes of a step, and then less and less often. Retries after errors go by real
// time.
func WithFakeTime(c *Clock) Option {
	return func(o *options) { o.clock, o.manual = c, c }
}

// WithClock sets the API server's clock; the default is the machine's. Objects' timestamps and ages, times to live,
// and the validity of tokens and client certificates depend on it. Deadlines of requests and pauses before retries
// do not.
func WithClock(c clock.WithTicker) Option { return func(o *options) { o.clock = c } }

func (o *options) newCA(name string) (*pki.CA, error) { return pki.NewCAByClock(name, o.clock.Now()) }

// partsClock returns the clock of controllers, scheduler and nodes; nil is the machine's clock.
func (o *options) partsClock() clock.WithTicker {
	if o.manual == nil {
		return nil
	}
	return o.manual
}

// Settle returns when the control plane is idle: controllers, scheduler and nodes have seen all changes and have
// done all work that follows from them, and no request of any client is under way. Settle waits for a retry that is
// due within a second, but not for later retries or for timers. If ctx ends first, the error lists the remaining
// work.
func (e *Environment) Settle(ctx context.Context) error {
	if err := e.own("Settle"); err != nil {
		return err
	}
	if err := e.server.settle(ctx); err != nil {
		return fmt.Errorf("testenv: %w", err)
	}
	return nil
}

// rest is the Rest of the manual clock. Time passes while the API server is stopped, too.
func (e *Environment) rest(ctx context.Context) error {
	err := e.server.settle(ctx)
	if errors.Is(err, errStopped) {
		return nil
	}
	return err
}

func (s *server) settle(ctx context.Context) error {
	s.mu.Lock()
	api := s.api
	s.mu.Unlock()
	if api == nil {
		return errStopped
	}
	return api.Settle(ctx, s.parts)
}
