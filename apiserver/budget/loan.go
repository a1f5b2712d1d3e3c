package budget

import (
	"container/list"
	"sync"
	"sync/atomic"
	"time"
)

// lookEvery is how often loans are looked through while someone waits.
const lookEvery = 100 * time.Millisecond

// Loan marks an Account whose holder waits for somebody else, a client that sends a body say, and therefore keeps what
// it has only until a time, or for as long as nobody else needs it. The nil Loan is none.
type Loan struct {
	of       *Budget
	until    time.Time
	stalled  int64 // bytes that Return gives back
	calledIn atomic.Bool

	mu       sync.Mutex // held while end runs
	end      func()
	returned bool
}

// Lend makes a loan of what the account has. While others wait for bytes after the given time, end is called from
// other goroutines, every lookEvery until Return: it has the holder give up and close the account. Once may not be
// enough, if what the holder waits for only then begins to be stuck.
func (a *Account) Lend(until time.Time, end func()) *Loan {
	if a == nil || !a.of.Limited() {
		return nil
	}
	l := &Loan{of: a.of, until: until, end: end}
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	if l.of.loans == nil {
		l.of.loans = map[*Loan]struct{}{}
	}
	l.of.loans[l] = struct{}{}
	return l
}

// Stall takes n bytes for somebody who waits for somebody else and holds them anyway, until Return. If they are not
// free, the loan that should have been returned first, which may be this one, is called in.
func (b *Budget) Stall(n int64, until time.Time, end func()) *Loan {
	if !b.Limited() {
		return nil
	}
	a := b.Open()
	a.Force(n)
	l := a.Lend(until, end)
	l.stalled = n
	if b.Used() > b.Size() {
		b.overdue().callIn()
	}
	return l
}

// overdue returns the loan that should have been returned first, of those that have not been called in; nil if there is
// none.
func (b *Budget) overdue() (first *Loan) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for l := range b.loans {
		if !l.calledIn.Load() && (first == nil || l.until.Before(first.until)) {
			first = l
		}
	}
	return first
}

// Return ends the loan: the holder no longer waits, and its end neither runs nor will. It returns false if the loan has
// been called in.
func (l *Loan) Return() bool {
	if l == nil {
		return true
	}
	l.of.mu.Lock()
	delete(l.of.loans, l)
	l.of.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.returned = true
	l.of.Release(l.stalled)
	l.stalled = 0
	return !l.calledIn.Load()
}

func (l *Loan) callIn() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.returned {
		l.calledIn.Store(true)
		l.end()
	}
}

// callIn ends the loans that are over if the waiter is the first one.
func (b *Budget) callIn(at *list.Element) {
	for _, l := range b.over(at) {
		l.callIn()
	}
}

// over returns the loans that are over, if the waiter is the first one.
func (b *Budget) over(at *list.Element) []*Loan {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiters.Front() != at {
		return nil
	}
	now := time.Now()
	var over []*Loan
	for l := range b.loans {
		if l.until.Before(now) {
			over = append(over, l)
		}
	}
	return over
}
