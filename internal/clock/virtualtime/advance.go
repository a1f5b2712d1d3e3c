package virtualtime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"
)

const (
	// closely is how long, from the beginning of a step, the clock stops for periodic work whenever it is due. A Node
	// that was silent when the step began is found in this time. From then on the stops for periodic work alone are
	// ever further apart: each comes when the step is half as long again as at the one before.
	closely = 2 * time.Minute
	// abandonedAfter is how long, in real time, the clock waits for the receiver of a timer's channel, which may have
	// gone.
	abandonedAfter = 20 * time.Millisecond
	// stepPatience is how long, in real time, Step waits for things to come to rest, all in all.
	stepPatience = 10 * time.Minute
)

// Advance moves the clock by d, from moment to moment. It returns when everything has come to rest after the last one.
// If ctx ends or a Rest fails before that, the clock stays at the moment that it has reached.
func (c *Clock) Advance(ctx context.Context, d time.Duration) error {
	if d < 0 {
		return errors.New("virtualtime: the clock cannot go back")
	}
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	begin := c.Now()
	end, stopped := begin.Add(d), begin // when the clock last stopped for periodic work
	if err := c.rest(ctx); err != nil {
		return err
	}
	for {
		next, forPeriodic := c.next(begin, stopped, end)
		if forPeriodic {
			stopped = next
		}
		if err := c.goTo(ctx, next); err != nil {
			return err
		}
		if !next.Before(end) && !c.isDue(end) {
			return nil
		}
	}
}

// Step is Advance for a test that has nothing to do with an error: it panics if things do not come to rest.
func (c *Clock) Step(d time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), stepPatience)
	defer cancel()
	if err := c.Advance(ctx, d); err != nil {
		panic(fmt.Sprintf("the clock stays at %s: %v", c.Now().Format(time.RFC3339), err))
	}
}

// AdvanceTo is Advance to a time, which must not be past.
func (c *Clock) AdvanceTo(ctx context.Context, t time.Time) error { return c.Advance(ctx, c.Until(t)) }

// next returns the next moment at which the clock stops, and whether it does so for periodic work alone.
func (c *Clock) next(begin, stopped, end time.Time) (next time.Time, forPeriodic bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	earliest := begin
	if spent := stopped.Sub(begin); spent >= closely {
		earliest = stopped.Add(spent / 2)
	}
	next = end
	for t := range c.timers {
		at := t.due
		if t.class != exact {
			at = latest(at, earliest)
		}
		if at.Before(next) || at.Equal(next) && t.class == exact {
			next, forPeriodic = at, t.class != exact
		}
	}
	return latest(next, c.Now()), forPeriodic
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// isDue reports whether a timer is due at a time or before.
func (c *Clock) isDue(at time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for t := range c.timers {
		if !t.due.After(at) {
			return true
		}
	}
	return false
}

// goTo stops at a moment: first come the signs of life, so that those who watch for them see them, then the rest.
func (c *Clock) goTo(ctx context.Context, moment time.Time) error {
	c.now.Store(&moment)
	for _, of := range [][]class{{heartbeat}, {periodic, exact}} {
		if c.fire(of) == 0 {
			continue
		}
		if err := c.rest(ctx); err != nil {
			return err
		}
	}
	return nil
}

// fire fires the timers of some classes that are due, in order, and returns how many there were.
func (c *Clock) fire(of []class) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	var due []*timer
	for t := range c.timers {
		if slices.Contains(of, t.class) && !t.due.After(c.Now()) {
			due = append(due, t)
		}
	}
	slices.SortFunc(due, func(a, b *timer) int {
		return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.serial, b.serial))
	})
	for _, t := range due {
		delete(c.timers, t)
		c.fireLocked(t)
	}
	return len(due)
}

// rest waits until all that has fired has been taken and handled.
func (c *Clock) rest(ctx context.Context) error {
	if err := c.awaitTaken(ctx); err != nil {
		return err
	}
	c.mu.Lock()
	rests := slices.Clone(c.rests)
	c.mu.Unlock()
	for _, rest := range rests {
		if err := (*rest)(ctx); err != nil {
			return err
		}
	}
	return nil
}

// awaitTaken waits for the functions that have been called, and for the receivers of the channels.
func (c *Clock) awaitTaken(ctx context.Context) error {
	for begun, looks := time.Now(), 0; ; looks++ {
		abandoned := time.Since(begun) > abandonedAfter
		c.mu.Lock()
		c.taken = slices.DeleteFunc(c.taken, func(t *timer) bool { return abandoned || len(t.c) == 0 })
		waiting := len(c.taken)
		c.mu.Unlock()
		running := c.running.Load()
		if waiting == 0 && running == 0 {
			return nil
		}
		if looks < 1000 {
			runtime.Gosched() // mostly it takes microseconds
			continue
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d functions have not returned: %w", running, ctx.Err())
		case <-time.After(100 * time.Microsecond):
		}
	}
}
