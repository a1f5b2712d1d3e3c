package virtualtime

import (
	"time"

	"k8s.io/utils/clock"
)

// view is the clock to users whose timers are of another class.
type view struct {
	*Clock
	class class
}

func (v view) NewTimer(d time.Duration) clock.Timer { return v.newTimer(v.class, d, 0, nil) }

func (v view) After(d time.Duration) <-chan time.Time { return v.NewTimer(d).C() }

func (v view) Sleep(d time.Duration) { <-v.After(d) }

func (v view) AfterFunc(d time.Duration, f func()) clock.Timer {
	return v.newTimer(v.class, d, 0, f)
}

// Heartbeat returns the clock for signs of life, such as the renewal of a Node's Lease. They are periodic, and come
// before all else at the moments at which the clock stops, so that no live Node is taken for dead. Clocks that go by
// themselves are returned as they are.
func Heartbeat(c clock.WithTicker) clock.WithTicker { return as(c, heartbeat) }

// Periodic returns the clock for work that is done again and again, mostly to find nothing to do: a look at the health
// of all Nodes, a resync. Clocks that go by themselves are returned as they are.
func Periodic(c clock.WithTicker) clock.WithTicker { return as(c, periodic) }

func as(c clock.WithTicker, of class) clock.WithTicker {
	switch c := c.(type) {
	case *Clock:
		return view{c, of}
	case view:
		return view{c.Clock, of}
	}
	return c
}

// IsManual reports whether a clock is moved by hand.
func IsManual(c clock.PassiveClock) bool {
	switch c.(type) {
	case *Clock, view:
		return true
	}
	return false
}

// Pause is how long to wait for more changes, in order to handle them together: d, or nothing where the clock is moved
// by hand, since all changes of a moment are there before it moves on.
func Pause(c clock.PassiveClock, d time.Duration) time.Duration {
	if IsManual(c) {
		return 0
	}
	return d
}
