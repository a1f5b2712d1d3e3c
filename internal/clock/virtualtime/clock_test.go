package virtualtime_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/internal/clock/virtualtime"
)

var start = time.Date(2031, 5, 1, 8, 0, 0, 0, time.UTC)

// diary records times and events.
type diary struct {
	mu    sync.Mutex
	clock *virtualtime.Clock
	lines []string
}

func (d *diary) note(event string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, fmt.Sprintf("%s %s", d.clock.Since(start), event))
}

func newDiary() (*virtualtime.Clock, *diary) {
	c := virtualtime.New(start)
	return c, &diary{clock: c}
}

// again calls f every d on a clock, like a work queue that adds a key again and again.
func again(c clock.WithTicker, d time.Duration, f func()) {
	c.(clock.WithDelayedExecution).AfterFunc(d, func() {
		f()
		again(c, d, f)
	})
}

func TestAdvance_StopsAtEachMomentInOrder(t *testing.T) {
	t.Parallel()
	c, d := newDiary()
	c.AfterFunc(time.Hour, func() { d.note("an hour") })
	c.AfterFunc(time.Minute, func() {
		d.note("a minute")
		c.AfterFunc(time.Minute, func() { d.note("one more") })
	})
	c.AfterFunc(3*time.Hour, func() { d.note("too late") })
	require.NoError(t, c.Advance(t.Context(), 2*time.Hour))
	require.Equal(t, []string{"1m0s a minute", "2m0s one more", "1h0m0s an hour"}, d.lines)
	require.Equal(t, start.Add(2*time.Hour), c.Now())
}

// TestAdvance_RestsBetweenMoments starts work from a timer that ends only when the clock waits for it. It must be
// done at the timer's time, although later timers exist.
func TestAdvance_RestsBetweenMoments(t *testing.T) {
	t.Parallel()
	c, d := newDiary()
	var work []string
	c.AddRest(func(context.Context) error {
		for _, w := range work {
			d.note(w)
		}
		work = nil
		return nil
	})
	for i := range 3 {
		c.AfterFunc(time.Duration(i+1)*time.Minute, func() { work = append(work, fmt.Sprint("follows ", i)) })
	}
	require.NoError(t, c.Advance(t.Context(), time.Hour))
	require.Equal(t, []string{"1m0s follows 0", "2m0s follows 1", "3m0s follows 2"}, d.lines)
}

func TestAdvance_StaysAtTheMomentWhoseWorkDoesNotEnd(t *testing.T) {
	t.Parallel()
	c := virtualtime.New(start)
	busy := errors.New("a controller spins")
	remove := c.AddRest(func(context.Context) error {
		if c.Since(start) >= time.Minute {
			return busy
		}
		return nil
	})
	c.AfterFunc(time.Minute, func() {})
	require.ErrorIs(t, c.Advance(t.Context(), time.Hour), busy)
	require.Equal(t, start.Add(time.Minute), c.Now())
	require.Panics(t, func() { c.Step(time.Hour) })
	remove()
	require.NoError(t, c.Advance(t.Context(), time.Minute))
	require.Equal(t, start.Add(2*time.Minute), c.Now())
}

// TestAdvance_EndsWithItsContext calls a function that waits for a time which cannot come.
func TestAdvance_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	c := virtualtime.New(start)
	ctx, cancel := context.WithCancel(t.Context())
	release := make(chan struct{})
	c.AfterFunc(time.Minute, func() {
		cancel()
		<-release
	})
	require.ErrorIs(t, c.Advance(ctx, time.Hour), context.Canceled)
	require.Equal(t, start.Add(time.Minute), c.Now())
	close(release)
	require.Error(t, c.Advance(t.Context(), -time.Second))
	require.NoError(t, c.Advance(t.Context(), 0))
}

// TestAdvance_FiresHeartbeatsFirst has an observer of heartbeats that is due at the same moments and was started
// before.
func TestAdvance_FiresHeartbeatsFirst(t *testing.T) {
	t.Parallel()
	c, _ := newDiary()
	var mu sync.Mutex
	heard, silent := start, 0
	again(virtualtime.Periodic(c), 5*time.Second, func() {
		mu.Lock()
		defer mu.Unlock()
		if c.Since(heard) > 10*time.Second {
			silent++
		}
	})
	again(virtualtime.Heartbeat(c), 10*time.Second, func() {
		mu.Lock()
		defer mu.Unlock()
		heard = c.Now()
	})
	require.NoError(t, c.Advance(t.Context(), 30*24*time.Hour))
	require.Zero(t, silent, "times at which the heart seemed to have stopped")
}

// TestAdvance_IsSparingWithPeriodicWork limits the stops in a month. They must be close together at the beginning
// of a step.
func TestAdvance_IsSparingWithPeriodicWork(t *testing.T) {
	t.Parallel()
	c := virtualtime.New(start)
	var elapsed []time.Duration
	ticker, end := c.NewTicker(5*time.Second), make(chan struct{})
	defer close(end)
	go func() {
		for {
			select {
			case <-ticker.C():
			case <-end:
				ticker.Stop()
				return
			}
		}
	}()
	c.AddRest(func(context.Context) error {
		if d := c.Since(start); len(elapsed) == 0 || elapsed[len(elapsed)-1] != d {
			elapsed = append(elapsed, d)
		}
		return nil
	})
	require.NoError(t, c.Advance(t.Context(), 30*24*time.Hour))
	for i := range 24 {
		require.Equal(t, time.Duration(i)*5*time.Second, elapsed[i])
	}
	require.Less(t, len(elapsed), 24+30)
	require.Equal(t, 30*24*time.Hour, elapsed[len(elapsed)-1])
}

func TestTimer_StopsAndResets(t *testing.T) {
	t.Parallel()
	c := virtualtime.New(start)
	stopped, moved, now := c.NewTimer(time.Minute), c.NewTimer(time.Minute), c.NewTimer(0)
	require.Equal(t, start, <-now.C(), "a timer whose time has come fires at once")
	require.True(t, stopped.Stop())
	require.False(t, stopped.Stop())
	require.True(t, moved.Reset(time.Hour))
	require.NoError(t, c.Advance(t.Context(), 59*time.Minute))
	require.Empty(t, stopped.C())
	require.Empty(t, moved.C())
	require.NoError(t, c.Advance(t.Context(), 2*time.Minute))
	require.False(t, moved.Reset(time.Minute), "it had fired")
	require.Empty(t, moved.C(), "what nobody received is gone after Reset")
	require.NoError(t, c.Advance(t.Context(), time.Minute))
	require.Equal(t, start.Add(62*time.Minute), <-moved.C())
}

func TestPause_IsZeroOnAManualClock(t *testing.T) {
	t.Parallel()
	c := virtualtime.New(start)
	require.Zero(t, virtualtime.Pause(c, time.Second))
	require.Zero(t, virtualtime.Pause(virtualtime.Periodic(c), time.Second))
	require.Equal(t, time.Second, virtualtime.Pause(clock.RealClock{}, time.Second))
	require.Equal(t, clock.WithTicker(clock.RealClock{}), virtualtime.Heartbeat(clock.RealClock{}))
}

func ExampleClock() {
	c := virtualtime.New(time.Date(2031, 5, 1, 8, 0, 0, 0, time.UTC))
	c.AfterFunc(24*time.Hour, func() { fmt.Println("a day has passed:", c.Now().Format(time.DateTime)) })
	if err := c.Advance(context.Background(), 48*time.Hour); err != nil {
		fmt.Println(err)
	}
	fmt.Println("and another:", c.Now().Format(time.DateTime))
	// Output:
	// a day has passed: 2031-05-02 08:00:00
	// and another: 2031-05-03 08:00:00
}

// BenchmarkAdvance_Day measures a day of an idle control plane.
func BenchmarkAdvance_Day(b *testing.B) {
	c := virtualtime.New(start)
	again(virtualtime.Heartbeat(c), 10*time.Second, func() {})
	again(virtualtime.Periodic(c), 5*time.Second, func() {})
	for b.Loop() {
		c.Step(24 * time.Hour)
	}
}

// BenchmarkStep_AThousandTimers measures a step of a second: one of a thousand timers fires and starts
// again.
func BenchmarkStep_AThousandTimers(b *testing.B) {
	const timers = 1000
	c := virtualtime.New(start)
	for i := range timers {
		c.AfterFunc(time.Duration(i+1)*time.Second, func() { again(c, timers*time.Second, func() {}) })
	}
	c.Step(timers * time.Second) // from here on one timer is due each second
	for b.Loop() {
		c.Step(time.Second)
	}
}
