// Package budget limits the memory that requests hold together. A Budget is a semaphore in bytes (budget.go). Requests
// that wait for slow clients give way while others wait for bytes (timeout.go). The size of the Budget follows from the
// memory limit of the process and the size of the store (limit.go).
//
// It knows neither HTTP nor storage, only numbers of bytes.
//
// # Ownership
//
// A request opens an Account, charges bytes to it before it allocates them, and closes it when it ends. An Account that
// is not closed reduces the Budget forever. A Timeout must be stopped before its Account is closed.
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

// ErrFull is the error for bytes that did not become free in time.
var ErrFull = errors.New("the memory of requests is in use")

// Budget is a number of bytes that requests share. Requests that find too few free bytes wait in order of their
// arrival. The nil Budget has no limit. Its methods are safe for concurrent use.
//
// # Concurrency
//
// Without waiters, a charge and a release are one atomic addition each, without the lock. A waiter enters the list,
// sets queued and tries once more, all under mu. A release subtracts first and loads queued afterwards. Therefore
// either the waiter sees the released bytes, or the release sees queued and serves the waiters. take describes the one
// exception.
type Budget struct {
	wait time.Duration // immutable: the longest time that a waiter waits
	size atomic.Int64  // 0 is no limit
	// used may exceed size: after Force, after size was reduced, and for a moment in take.
	used atomic.Int64
	// queued is true while there are waiters: charges queue behind them even if their bytes are free. It is changed
	// with mu held.
	queued atomic.Bool

	// mu guards the fields below.
	mu      sync.Mutex
	waiters list.List // of *waiter, in order of arrival
	stuck   int64     // the bytes that the waiters hold already
	// timeouts are the running ones.
	timeouts map[*Timeout]struct{}

	rejected prometheus.Counter
	metrics  []prometheus.Collector
}

// waiter is a request in the list. Budget.mu guards it until ready is closed; then it belongs to the waiting goroutine.
type waiter struct {
	n        int64         // needs these; once ready, the bytes that it got
	held     int64         // has these already
	ready    chan struct{} // closed when it has its bytes or is rejected, after it was removed from the list
	rejected bool
}

// New returns a Budget of so many bytes, 0 for no limit. Bytes that do not become free within wait are rejected.
func New(size int64, wait time.Duration) *Budget {
	b := &Budget{wait: wait}
	b.size.Store(size)
	b.newMetrics()
	return b
}

// Resize changes the number of bytes. Bytes in use stay in use.
func (b *Budget) Resize(size int64) {
	b.size.Store(size)
	b.serve()
}

// Size returns the number of bytes, 0 for no limit.
func (b *Budget) Size() int64 { return b.size.Load() }

// Used returns the number of bytes in use.
func (b *Budget) Used() int64 { return b.used.Load() }

// Limited reports whether there is a limit.
func (b *Budget) Limited() bool { return b != nil && b.size.Load() > 0 }

// acquire takes n bytes for a request that holds some already, and waits until they are free. It returns the number to
// Release later: less than n if n is more than the whole budget. The error is ErrFull or the context's.
func (b *Budget) acquire(ctx context.Context, n, held int64) (int64, error) {
	if !b.Limited() || n <= 0 {
		return 0, nil
	}
	if taken, ok := b.tryAcquire(n); ok {
		return taken, nil
	}
	b.mu.Lock()
	w := &waiter{n: n, held: held, ready: make(chan struct{})}
	element := b.waiters.PushBack(w)
	b.stuck += held
	b.queued.Store(true)
	b.serveLocked()
	b.mu.Unlock()
	err := b.await(ctx, element)
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-w.ready: // perhaps at the same time as the timeout: the bytes must not be lost
		if !w.rejected {
			return w.n, nil
		}
		err = ErrFull
	default:
		b.remove(element)
		b.serveLocked() // the next waiters may need fewer bytes
	}
	b.rejected.Inc()
	return 0, err
}

// remove removes a waiter from the list. b.mu is held.
func (b *Budget) remove(element *list.Element) *waiter {
	w := b.waiters.Remove(element).(*waiter)
	b.stuck -= w.held
	return w
}

// await waits for a waiter's bytes, without b.mu. The first waiter fires the timeouts that are past their deadlines.
func (b *Budget) await(ctx context.Context, element *list.Element) error {
	timer, ticker := time.NewTimer(b.wait), time.NewTicker(checkEvery)
	defer timer.Stop()
	defer ticker.Stop()
	for {
		b.fireExpired(element)
		select {
		case <-element.Value.(*waiter).ready:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			return ErrFull
		case <-ticker.C:
		}
	}
}

// CountRejection counts a rejection that did not go through Charge, such as a reset HTTP/2 stream.
func (b *Budget) CountRejection() { b.rejected.Inc() }

// tryAcquire does the same as acquire without waiting. It returns false if n bytes are not free, or if requests wait.
func (b *Budget) tryAcquire(n int64) (int64, bool) {
	if !b.Limited() {
		return 0, true
	}
	if b.queued.Load() {
		return 0, false
	}
	return b.take(n)
}

// take takes n bytes if they are free. A charge larger than the budget gets the whole budget, if no other bytes are in
// use. It does not get the rest while its own request holds bytes already: the sum would exceed the budget.
// A charge that fails changes nothing: a waiter that tries at the same time must not fail because of it.
func (b *Budget) take(n int64) (int64, bool) {
	size := b.size.Load()
	if size > 0 {
		n = min(n, size)
	}
	for {
		used := b.used.Load()
		if size > 0 && used+n > size {
			return 0, false
		}
		if b.used.CompareAndSwap(used, used+n) {
			return n, true
		}
	}
}

// Release gives bytes back, and serves the waiters, if there are any.
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

// serveLocked gives the waiters their bytes, in order, until one does not get them. b.mu is held.
func (b *Budget) serveLocked() {
	for first := b.waiters.Front(); first != nil; first = b.waiters.Front() {
		w := first.Value.(*waiter)
		n, ok := b.take(w.n)
		if !ok {
			b.breakDeadlock()
			return
		}
		w.n = n
		close(b.remove(first).ready)
	}
	b.queued.Store(false)
}

// breakDeadlock rejects a waiter if the waiters hold every byte in use, so that no release could ever serve them. It
// chooses the waiter that holds most, and the last one of several. The waiter's request gives up its bytes then, which
// serves the others. b.mu is held.
func (b *Budget) breakDeadlock() {
	if b.stuck == 0 || b.used.Load() > b.stuck {
		return
	}
	largest := b.waiters.Front()
	for element := largest; element != nil; element = element.Next() {
		if element.Value.(*waiter).held >= largest.Value.(*waiter).held {
			largest = element
		}
	}
	w := b.remove(largest)
	w.rejected = true
	close(w.ready)
}

// Account holds the bytes that one request has taken from a Budget. It is for one goroutine. The nil Account takes
// none.
type Account struct {
	budget *Budget
	bytes  int64
}

// Open returns an Account without bytes. The caller must Close it.
func (b *Budget) Open() Account { return Account{budget: b} }

// Charge takes n more bytes, and waits until they are free. If n is more than the whole budget, it takes the whole
// budget. The error is ErrFull or the context's; then the account has the bytes that it had before.
func (a *Account) Charge(ctx context.Context, n int64) error {
	if a == nil || !a.budget.Limited() {
		return nil
	}
	taken, err := a.budget.acquire(ctx, n, a.bytes)
	a.bytes += taken
	return err
}

// Force takes n more bytes whether they are free or not. Other requests wait until the excess is released.
func (a *Account) Force(n int64) {
	if a != nil && a.budget.Limited() {
		a.budget.used.Add(n)
		a.bytes += n
	}
}

// Try takes n more bytes if they are free now and no request waits.
func (a *Account) Try(n int64) bool {
	if a == nil || !a.budget.Limited() {
		return true
	}
	taken, ok := a.budget.tryAcquire(n)
	a.bytes += taken
	return ok
}

// Size returns the Budget's size, 0 for no limit.
func (a *Account) Size() int64 {
	if a == nil || a.budget == nil {
		return 0
	}
	return a.budget.Size()
}

// Reserved returns the number of bytes that the account has.
func (a *Account) Reserved() int64 {
	if a == nil {
		return 0
	}
	return a.bytes
}

// ReleaseTo gives bytes back until n are left. It has no effect if the account has fewer.
func (a *Account) ReleaseTo(n int64) {
	if a == nil || a.bytes <= n {
		return
	}
	a.budget.Release(a.bytes - n)
	a.bytes = n
}

// Close gives back all bytes.
func (a *Account) Close() { a.ReleaseTo(0) }

func (b *Budget) waiting() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waiters.Len()
}

func (b *Budget) newMetrics() {
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "coxswain_request_memory_" + name, Help: help}, value)
	}
	b.rejected = prometheus.NewCounter(prometheus.CounterOpts{Name: "coxswain_request_memory_refused_total",
		Help: "Number of requests that did not get the memory they need in time."})
	b.metrics = []prometheus.Collector{
		gauge("limit_bytes", "Bytes that requests may hold together, 0 for no limit.",
			func() float64 { return float64(b.Size()) }),
		gauge("used_bytes", "Bytes that requests hold, as estimated.", func() float64 { return float64(b.Used()) }),
		gauge("waiting_requests", "Number of requests that wait for memory.",
			func() float64 { return float64(b.waiting()) }),
		b.rejected,
	}
}

// Describe and Collect make a Budget a prometheus.Collector.
func (b *Budget) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range b.metrics {
		m.Describe(ch)
	}
}

func (b *Budget) Collect(ch chan<- prometheus.Metric) {
	for _, m := range b.metrics {
		m.Collect(ch)
	}
}
