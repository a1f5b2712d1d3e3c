// Package budget counts the bytes that requests hold against what the process may hold: a Budget is a semaphore in
// bytes (budget.go), whose holders give way when they are slow and others wait (loan.go), and its size follows from the
// memory limit of the process and from what the store takes (limit.go).
//
// It knows neither HTTP nor storage: it is given numbers of bytes.
package budget

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// ErrFull is returned for bytes that did not become free in time.
var ErrFull = errors.New("the memory of requests is in use")

// Budget is a number of bytes that requests share. Those that find too few free wait in order of their arrival. The nil
// Budget has no limit. Its methods are safe for concurrent use.
type Budget struct {
	wait time.Duration
	size atomic.Int64 // 0 is no limit
	used atomic.Int64
	// queued is set while someone waits, so that nobody overtakes.
	queued atomic.Bool

	mu      sync.Mutex
	waiters list.List // of *waiter, the first comes first
	stuck   int64     // what they hold already
	loans   map[*Loan]struct{}

	refused prometheus.Counter
	metrics []prometheus.Collector
}

type waiter struct {
	n, held int64
	ready   chan struct{} // closed once it has its bytes, or will not get them
	refused bool
}

// New returns a Budget of so many bytes, 0 for no limit. Bytes that do not become free within wait are refused.
func New(size int64, wait time.Duration) *Budget {
	b := &Budget{wait: wait}
	b.size.Store(size)
	b.newMetrics()
	return b
}

// Resize changes the number of bytes. Those that are in use stay so.
func (b *Budget) Resize(size int64) {
	b.size.Store(size)
	b.serve()
}

// Size is the number of bytes, 0 for no limit.
func (b *Budget) Size() int64 { return b.size.Load() }

// Used is how many bytes are in use.
func (b *Budget) Used() int64 { return b.used.Load() }

// Limited reports whether there is a limit.
func (b *Budget) Limited() bool { return b != nil && b.size.Load() > 0 }

// acquire takes n bytes for somebody who holds some already, and waits until they are free. It returns how many Release
// must give back: fewer than n if there will never be as many. The error is ErrFull or the context's.
func (b *Budget) acquire(ctx context.Context, n, held int64) (int64, error) {
	if !b.Limited() || n <= 0 {
		return 0, nil
	}
	if taken, ok := b.tryAcquire(n); ok {
		return taken, nil
	}
	b.mu.Lock()
	w := &waiter{n: n, held: held, ready: make(chan struct{})}
	at := b.waiters.PushBack(w)
	b.stuck += held
	b.queued.Store(true)
	b.serveLocked()
	b.mu.Unlock()
	err := b.await(ctx, at)
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-w.ready: // even if at the last moment
		if !w.refused {
			return w.n, nil
		}
		err = ErrFull
	default:
		b.dismiss(at)
		b.serveLocked()
	}
	b.refused.Inc()
	return 0, err
}

// dismiss lets somebody wait no longer. b.mu is held.
func (b *Budget) dismiss(at *list.Element) *waiter {
	w := b.waiters.Remove(at).(*waiter)
	b.stuck -= w.held
	return w
}

// await waits for a waiter's bytes. The first of those that wait calls in the loans that are over.
func (b *Budget) await(ctx context.Context, at *list.Element) error {
	timer, look := time.NewTimer(b.wait), time.NewTicker(lookEvery)
	defer timer.Stop()
	defer look.Stop()
	for {
		b.callIn(at)
		select {
		case <-at.Value.(*waiter).ready:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			return ErrFull
		case <-look.C:
		}
	}
}

// Refuse notes that somebody was refused who did not ask for bytes, because there are none.
func (b *Budget) Refuse() { b.refused.Inc() }

// tryAcquire is acquire without waiting; false if n bytes are not free or others wait for theirs.
func (b *Budget) tryAcquire(n int64) (int64, bool) {
	if !b.Limited() {
		return 0, true
	}
	if b.queued.Load() {
		return 0, false
	}
	return b.take(n)
}

// take takes n bytes if they are free. One who wants more than there are gets all of them, if nobody has any: whoever
// holds some already must not come to more than all.
func (b *Budget) take(n int64) (int64, bool) {
	size := b.size.Load()
	if size > 0 {
		n = min(n, size)
	}
	if b.used.Add(n) <= size || size == 0 {
		return n, true
	}
	b.used.Add(-n)
	return 0, false
}

// Release gives bytes back that were taken.
func (b *Budget) Release(n int64) {
	if n == 0 {
		return
	}
	b.used.Add(-n)
	if b.queued.Load() {
		b.serve()
	}
}

func (b *Budget) serve() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.serveLocked()
}

// serveLocked gives those that wait their bytes, in order. b.mu is held.
func (b *Budget) serveLocked() {
	for first := b.waiters.Front(); first != nil; first = b.waiters.Front() {
		w := first.Value.(*waiter)
		n, ok := b.take(w.n)
		if !ok {
			b.unlock()
			return
		}
		w.n = n
		close(b.dismiss(first).ready)
	}
	b.queued.Store(false)
}

// unlock refuses one of those that wait if all that is in use is held by those that wait, so that none of them could
// ever go on: the last of those that hold most. b.mu is held.
func (b *Budget) unlock() {
	if b.stuck == 0 || b.used.Load() > b.stuck {
		return
	}
	most := b.waiters.Front()
	for at := most; at != nil; at = at.Next() {
		if at.Value.(*waiter).held >= most.Value.(*waiter).held {
			most = at
		}
	}
	w := b.dismiss(most)
	w.refused = true
	close(w.ready)
}

// Account is what one request has taken of a Budget. It is for one goroutine; the nil Account takes nothing.
type Account struct {
	of   *Budget
	held int64
}

// Open returns an Account without bytes. Close gives back what it takes.
func (b *Budget) Open() Account { return Account{of: b} }

// Charge takes n more bytes, and waits until they are free: fewer if there will never be as many. The error is ErrFull
// or the context's.
func (a *Account) Charge(ctx context.Context, n int64) error {
	if a == nil || !a.of.Limited() {
		return nil
	}
	taken, err := a.of.acquire(ctx, n, a.held)
	a.held += taken
	return err
}

// Force takes n more bytes whether they are free or not.
func (a *Account) Force(n int64) {
	if a != nil && a.of.Limited() {
		a.of.used.Add(n)
		a.held += n
	}
}

// Try takes n more bytes if they are free now.
func (a *Account) Try(n int64) bool {
	if a == nil || !a.of.Limited() {
		return true
	}
	taken, ok := a.of.tryAcquire(n)
	a.held += taken
	return ok
}

// Size is that of the Budget, 0 for no limit.
func (a *Account) Size() int64 {
	if a == nil || a.of == nil {
		return 0
	}
	return a.of.Size()
}

// Held is how many bytes are taken.
func (a *Account) Held() int64 {
	if a == nil {
		return 0
	}
	return a.held
}

// Return gives bytes back until so many are left.
func (a *Account) Return(left int64) {
	if a == nil || a.held <= left {
		return
	}
	a.of.Release(a.held - left)
	a.held = left
}

// Close gives back all bytes.
func (a *Account) Close() { a.Return(0) }

func (b *Budget) waiting() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waiters.Len()
}

func (b *Budget) newMetrics() {
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "coxswain_request_memory_" + name, Help: help}, value)
	}
	b.refused = prometheus.NewCounter(prometheus.CounterOpts{Name: "coxswain_request_memory_refused_total",
		Help: "Number of requests that did not get the memory they need in time."})
	b.metrics = []prometheus.Collector{
		gauge("limit_bytes", "Bytes that requests may hold together, 0 for no limit.",
			func() float64 { return float64(b.Size()) }),
		gauge("used_bytes", "Bytes that requests hold, as estimated.", func() float64 { return float64(b.Used()) }),
		gauge("waiting_requests", "Number of requests that wait for memory.",
			func() float64 { return float64(b.waiting()) }),
		b.refused,
	}
}

// Describe and Collect make a Budget a prometheus.Collector.
func (b *Budget) Describe(to chan<- *prometheus.Desc) {
	for _, m := range b.metrics {
		m.Describe(to)
	}
}

func (b *Budget) Collect(to chan<- prometheus.Metric) {
	for _, m := range b.metrics {
		m.Collect(to)
	}
}
