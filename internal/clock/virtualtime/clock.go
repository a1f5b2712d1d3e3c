// Package virtualtime provides a clock that is moved by hand, for control planes with years that pass in milliseconds.
//
// The time stands still until Advance is called. The clock then jumps to the next moment when a timer is due,
// fires the timers of that moment, waits until all work that follows from them is done, and goes on to the next
// moment. Work takes no time on this clock, so the same steps lead to the same times in every run.
//
//	clock.go     the clock and its timers
//	advance.go   from one moment to the next
//	views.go     the classes of timers, and functions that work with any clock
//
// Not every timer stops the clock. A day has 8,640 heartbeats of each Node, and usually none of them changes
// anything. Such work is marked as periodic (Heartbeat, Periodic, and all tickers). It is done at the moments at
// which the clock stops for other reasons, and at a few of its own.
package virtualtime

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
)

// Clock is a clock that is moved by hand. It implements the interfaces of k8s.io/utils/clock. Its methods are safe
// for concurrent use. Its lock may be held while a timer's function is started, but not while it runs.
type Clock struct {
	now atomic.Pointer[time.Time]
	// running counts the functions of AfterFunc that have not returned. The clock does not move while it is above
	// zero.
	running atomic.Int64
	// turn holds a token while a call of Advance moves the clock.
	turn chan struct{}

	// mu guards the fields below. now changes without it, in Advance alone.
	mu     sync.Mutex
	timers map[*timer]struct{} // waiting timers
	taken  []*timer            // fired timers, until their time has been received
	serial uint64
	rests  []*Rest
}

// Rest waits until all work that follows from the events so far is done; an Environment's Settle is one. The clock
// calls it between two moments, and not concurrently. If it fails, the clock stays where it is.
type Rest func(ctx context.Context) error

var _ clock.WithTickerAndDelayedExecution = (*Clock)(nil)

// New returns a clock that stands at a time. The time is in whole microseconds, the resolution of the times in
// objects.
func New(now time.Time) *Clock {
	c := &Clock{turn: make(chan struct{}, 1), timers: map[*timer]struct{}{}}
	now = now.Truncate(time.Microsecond).Round(0) // without a reading of the monotonic clock
	c.now.Store(&now)
	return c
}

// AddRest makes the clock call a function between two moments, until remove is called. A clock may have several:
// one for each control plane that uses it.
func (c *Clock) AddRest(rest Rest) (remove func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	added := &rest
	c.rests = append(c.rests, added)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.rests = slices.DeleteFunc(c.rests, func(r *Rest) bool { return r == added })
	}
}

// Now returns the clock's time.
func (c *Clock) Now() time.Time { return *c.now.Load() }

// Since returns how long ago a time was.
func (c *Clock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// Until returns how long it is until a time.
func (c *Clock) Until(t time.Time) time.Duration { return t.Sub(c.Now()) }

// NewTimer returns a timer. Its channel receives the time once, when d has passed.
func (c *Clock) NewTimer(d time.Duration) clock.Timer { return c.newTimer(exact, d, 0, nil) }

// After returns the channel of a timer that is never stopped.
func (c *Clock) After(d time.Duration) <-chan time.Time { return c.NewTimer(d).C() }

// Sleep returns when d has passed.
func (c *Clock) Sleep(d time.Duration) { <-c.After(d) }

// AfterFunc calls f in a goroutine of its own when d has passed. The clock does not move on before f has returned.
func (c *Clock) AfterFunc(d time.Duration, f func()) clock.Timer { return c.newTimer(exact, d, 0, f) }

// NewTicker returns a ticker. It is periodic work: see Periodic.
func (c *Clock) NewTicker(d time.Duration) clock.Ticker { return ticker{c.newTicker(d)} }

// Tick returns the channel of a ticker that is never stopped.
func (c *Clock) Tick(d time.Duration) <-chan time.Time { return c.newTicker(d).C() }

func (c *Clock) newTicker(d time.Duration) *timer {
	if d <= 0 {
		panic("virtualtime: a ticker needs an interval above zero")
	}
	return c.newTimer(periodic, d, d, nil)
}

type ticker struct{ *timer }

func (t ticker) Stop() { t.timer.Stop() }

// class decides when a timer fires.
type class uint8

const (
	// heartbeat timers fire like periodic ones, but before all others.
	heartbeat class = iota
	// periodic timers fire when the clock stops at or after their time.
	periodic
	// exact timers stop the clock at their time.
	exact
)

// timer is a timer or a ticker. The clock's lock guards all but its channel.
type timer struct {
	clock  *Clock
	class  class
	due    time.Time
	serial uint64         // orders timers that are due at the same time
	every  time.Duration  // a ticker's interval; otherwise 0
	f      func()         // the function of AfterFunc; otherwise nil
	c      chan time.Time // nil for AfterFunc
}

func (c *Clock) newTimer(kind class, d, every time.Duration, f func()) *timer {
	t := &timer{clock: c, class: kind, every: every, f: f}
	if f == nil {
		t.c = make(chan time.Time, 1)
	}
	t.start(d)
	return t
}

// C returns the channel that receives the time; nil for a timer of AfterFunc.
func (t *timer) C() <-chan time.Time { return t.c }

// Stop ends the timer. It reports whether the timer was waiting.
func (t *timer) Stop() bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	return t.stopLocked()
}

func (t *timer) stopLocked() bool {
	_, waiting := t.clock.timers[t]
	delete(t.clock.timers, t)
	if t.c != nil {
		select {
		case <-t.c: // as with a time.Timer, no old time is received after Stop or Reset
		default:
		}
	}
	return waiting
}

// Reset makes the timer fire when d has passed from now. It reports whether the timer was waiting.
func (t *timer) Reset(d time.Duration) bool {
	t.clock.mu.Lock()
	waiting := t.stopLocked()
	t.clock.mu.Unlock()
	t.start(d)
	return waiting
}

// start adds the timer to the waiting ones. A timer without a delay fires at once.
func (t *timer) start(d time.Duration) {
	c := t.clock
	c.mu.Lock()
	defer c.mu.Unlock()
	c.serial++
	t.serial, t.due = c.serial, c.Now().Add(d)
	if d > 0 {
		c.timers[t] = struct{}{}
	} else {
		c.fireLocked(t)
	}
}

// fireLocked fires a timer that has been removed from the waiting ones. The caller holds the lock.
func (c *Clock) fireLocked(t *timer) {
	if t.f != nil {
		c.running.Add(1)
		go func() {
			defer c.running.Add(-1)
			t.f()
		}()
		return
	}
	select {
	case t.c <- c.Now():
		c.taken = append(c.taken, t)
	default: // a ticker whose last tick was not received misses one, as a time.Ticker does
	}
	if t.every > 0 {
		t.due = c.Now().Add(t.every)
		c.timers[t] = struct{}{}
	}
}
