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

// WithFakeTime has all parts of the control plane go by a clock that stands still until the test moves it.
//
//	clock := testenv.NewClock(time.Date(2031, 5, 1, 8, 0, 0, 0, time.UTC))
//	env := testenv.StartEnvironment(t, testenv.WithFakeTime(clock))
//	...
//	clock.Step(24 * time.Hour) // CronJobs run, times to live end, pods leave Nodes that are silent
//
// A step goes from one moment at which something is due to the next, and at each waits until the control plane has come
// to rest (Settle), so that the same steps have the same outcome. It knows nothing of the code under test, other
// than by its requests: an operator that goes by the same clock has to be waited for by Clock.AddRest.
//
// Periodic work, such as heartbeats of Nodes and the rounds of an autoscaler, is done at these moments too: at its
// intervals for the first two minutes of a step, and then less and less often. Retries after errors go by real time.
func WithFakeTime(c *Clock) Option {
	return func(o *options) { o.clock, o.manual = c, c }
}

// WithClock is what the API server tells the time by; the default is the machine's clock. Objects' timestamps and ages,
// times to live, and the validity of tokens and client certificates go by it. Deadlines of requests and pauses before
// retries do not.
func WithClock(c clock.WithTicker) Option { return func(o *options) { o.clock = c } }

func (o *options) newCA(name string) (*pki.CA, error) { return pki.NewCAByClock(name, o.clock.Now()) }

// partsClock is what controllers, scheduler and nodes go by; nil is the machine's clock.
func (o *options) partsClock() clock.WithTicker {
	if o.manual == nil {
		return nil
	}
	return o.manual
}

// Settle returns when the control plane has come to rest: controllers, scheduler and nodes have seen all changes and
// have done what follows from them, and no request is under way, no matter from whom. Settle waits for a retry that is
// due within a second, but not for a later one, nor for a time to come. If ctx ends first, the error has the work
// that was left.
func (e *Environment) Settle(ctx context.Context) error {
	if err := e.own("Settle"); err != nil {
		return err
	}
	if err := e.server.settle(ctx); err != nil {
		return fmt.Errorf("testenv: %w", err)
	}
	return nil
}

// rest is the clock's: time passes while the API server is stopped, too.
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
