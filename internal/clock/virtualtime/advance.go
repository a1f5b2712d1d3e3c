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
	// closely is how long, from the beginning of a step, the clock stops for periodic work whenever it is due. A
	// Node that was silent when the step began is found in this time. From then on the stops for periodic work
	// alone grow apart: each comes when the step is half as long again as at the one before.
	closely = 2 * time.Minute
	// abandonedAfter is how long, in real time, the clock waits for the receiver of a timer's channel, which may
	// not exist any more.
	abandonedAfter = 20 * time.Millisecond
	// stepPatience limits, in real time, how long Step waits until everything is idle.
	stepPatience = 10 * time.Minute
)

// Advance moves the clock by d, from one due moment to the next. It returns when all work that follows from the
// last moment is done. If ctx ends or a Rest fails before that, the clock stays at the moment that it has reached.
// Concurrent calls run one after the other.
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
	end, stopped := begin.Add(d), begin // stopped: the last stop for periodic work
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

// Step is Advance for tests that do not expect an error: it panics if the work does not come to an end.
func (c *Clock) Step(d time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), stepPatience)
	defer cancel()
	if err := c.Advance(ctx, d); err != nil {
		panic(fmt.Sprintf("virtualtime: the clock stays at %s: %v", c.Now().Format(time.RFC3339), err))
	}
}

// AdvanceTo is Advance to a time, which must not be in the past.
func (c *Clock) AdvanceTo(ctx context.Context, t time.Time) error { return c.Advance(ctx, c.Until(t)) }

// next returns the moment of the clock's next stop, and whether it stops for periodic work alone.
func (c *Clock) next(begin, stopped, end time.Time) (next time.Time, forPeriodic bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	earliest := begin
	if spent := stopped.Sub(begin); spent >= closely {
		earliest = stopped.Add(spent / 2)
	}
	next = end
	for t := range c.timers {
		moment := t.due
		if t.class != exact {
			moment = latest(moment, earliest)
		}
		if moment.Before(next) || moment.Equal(next) && t.class == exact {
			next, forPeriodic = moment, t.class != exact
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

// isDue reports whether a timer is due at a moment or before it.
func (c *Clock) isDue(moment time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for t := range c.timers {
		if !t.due.After(moment) {
			return true
		}
	}
	return false
}

// goTo moves the clock to a moment. It fires the heartbeats first and waits until their observers have seen them,
// then it fires the other timers.
func (c *Clock) goTo(ctx context.Context, moment time.Time) error {
	c.now.Store(&moment)
	for _, classes := range [][]class{{heartbeat}, {periodic, exact}} {
		if c.fire(classes) == 0 {
			continue
		}
		if err := c.rest(ctx); err != nil {
			return err
		}
	}
	return nil
}

// fire fires the timers of some classes that are due, in the order of their times, and returns their number.
func (c *Clock) fire(classes []class) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	var due []*timer
	for t := range c.timers {
		if slices.Contains(classes, t.class) && !t.due.After(c.Now()) {
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

// rest waits until each fired timer has been received and handled, and all work that follows is done.
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

// awaitTaken waits until the called functions have returned and the sent times have been received.
func (c *Clock) awaitTaken(ctx context.Context) error {
	for begun, tries := time.Now(), 0; ; tries++ {
		abandoned := time.Since(begun) > abandonedAfter
		c.mu.Lock()
		c.taken = slices.DeleteFunc(c.taken, func(t *timer) bool { return abandoned || len(t.c) == 0 })
		waiting := len(c.taken)
		c.mu.Unlock()
		running := c.running.Load()
		if waiting == 0 && running == 0 {
			return nil
		}
		if tries < 1000 {
			runtime.Gosched() // usually it takes microseconds
			continue
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d functions have not returned: %w", running, ctx.Err())
		case <-time.After(100 * time.Microsecond):
		}
	}
}
