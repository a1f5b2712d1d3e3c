package budget

import (
	"container/list"
	"sync"
	"sync/atomic"
	"time"
)

// checkEvery is the interval for expiring timeouts while a request waits for bytes.
const checkEvery = 100 * time.Millisecond

// Timeout is a slow-client timeout: it ends a request that waits for its client, such as for the rest of a body, and
// holds bytes meanwhile. Unlike a timer it does not fire at its deadline, but when another request needs the bytes
// after the deadline. The nil Timeout never fires.
//
// # Concurrency
//
// The goroutine that has started a Timeout stops it. Goroutines of other requests make it fire. Budget.mu guards the
// set of timeouts, and mu serializes end with Stop. mu may be held while Budget.mu is taken, never the other way
// around: therefore earliest and expired return timeouts, and the caller fires them without Budget.mu.
type Timeout struct {
	budget   *Budget
	deadline time.Time
	bytes    int64       // charged by ChargeSlow; Stop releases them
	fired    atomic.Bool // set with mu held, never cleared; read without mu by Budget.earliest

	mu      sync.Mutex // held while end runs, so that Stop waits for it
	end     func()
	stopped bool
}

// StartTimeout starts a Timeout for the bytes that the account has. While other requests wait for bytes after the
// deadline, end is called from their goroutines, every checkEvery until Stop. It must make the request give up and
// close the account, and must not call Stop itself. One call may not be enough, if the request begins to wait for its
// client only after the call.
func (a *Account) StartTimeout(deadline time.Time, end func()) *Timeout {
	if a == nil || !a.budget.Limited() {
		return nil
	}
	t := &Timeout{budget: a.budget, deadline: deadline, end: end}
	t.budget.mu.Lock()
	defer t.budget.mu.Unlock()
	if t.budget.timeouts == nil {
		t.budget.timeouts = map[*Timeout]struct{}{}
	}
	t.budget.timeouts[t] = struct{}{}
	return t
}

// ChargeSlow charges n bytes until Stop, whether they are free or not, for a request that holds them already while it
// waits for its client. If that exceeds the budget, the Timeout with the earliest deadline fires at once, which may be
// this one.
func (b *Budget) ChargeSlow(n int64, deadline time.Time, end func()) *Timeout {
	if !b.Limited() {
		return nil
	}
	a := b.Open()
	a.Force(n)
	t := a.StartTimeout(deadline, end)
	t.bytes = n
	if b.Used() > b.Size() {
		b.earliest().fire()
	}
	return t
}

// earliest returns the timeout with the earliest deadline among the ones that have not fired; nil if there is none.
func (b *Budget) earliest() (first *Timeout) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for t := range b.timeouts {
		if !t.fired.Load() && (first == nil || t.deadline.Before(first.deadline)) {
			first = t
		}
	}
	return first
}

// Stop ends the timeout: when it has returned, end neither runs nor will. It returns false if the timeout has fired. It
// may be called again.
func (t *Timeout) Stop() bool {
	if t == nil {
		return true
	}
	t.budget.mu.Lock()
	delete(t.budget.timeouts, t)
	t.budget.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopped = true // for a goroutine that found the timeout before it was deleted
	t.budget.Release(t.bytes)
	t.bytes = 0
	return !t.fired.Load()
}

func (t *Timeout) fire() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.stopped {
		t.fired.Store(true)
		t.end()
	}
}

// fireExpired fires the timeouts that are past their deadlines, if the waiter is the first one: the others wait for the
// first one, not for slow clients.
func (b *Budget) fireExpired(waiter *list.Element) {
	for _, t := range b.expired(waiter) {
		t.fire()
	}
}

// expired returns the timeouts that are past their deadlines, if the waiter is the first one.
func (b *Budget) expired(waiter *list.Element) []*Timeout {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiters.Front() != waiter {
		return nil
	}
	now := time.Now()
	var expired []*Timeout
	for t := range b.timeouts {
		if t.deadline.Before(now) {
			expired = append(expired, t)
		}
	}
	return expired
}
