package virtualtime

import (
	"time"

	"k8s.io/utils/clock"
)

// view is the clock for users with timers of another class.
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

// Heartbeat returns a clock for signs of life, such as the renewal of a Node's Lease. Its timers are periodic, and
// fire before all others whenever the clock stops, so that no live Node is considered dead. Clocks
// that run by themselves are returned unchanged.
func Heartbeat(c clock.WithTicker) clock.WithTicker { return as(c, heartbeat) }

// Periodic returns a clock for work that is repeated and seldom finds anything to do: a check of the health of all
// Nodes, a resync. Clocks that run by themselves are returned unchanged.
func Periodic(c clock.WithTicker) clock.WithTicker { return as(c, periodic) }

func as(c clock.WithTicker, kind class) clock.WithTicker {
	switch c := c.(type) {
	case *Clock:
		return view{c, kind}
	case view:
		return view{c.Clock, kind}
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

// Pause returns how long to wait for more changes, in order to handle them together: d, or 0 if the clock is moved
// by hand, since all changes of a moment arrive before it moves on.
func Pause(c clock.PassiveClock, d time.Duration) time.Duration {
	if IsManual(c) {
		return 0
	}
	return d
}
