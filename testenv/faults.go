package testenv

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// ErrNoAnswer, as Fault.Err, cuts the connection: the client gets no answer, and cannot know whether the request
// was carried out.
var ErrNoAnswer = errors.New("the connection is cut")

// Fault makes requests fail or wait inside the API server.
type Fault struct {
	// Match selects the requests.
	Match Match
	// Delay is how long a request waits, by the machine's clock. It gets no answer if the API server stops
	// meanwhile.
	Delay time.Duration
	// Err is the answer. An error of k8s.io/apimachinery/pkg/api/errors is sent as it is (errors.NewConflict …),
	// any other one as an internal error. ErrNoAnswer cuts the connection. If Err is nil, the request is answered
	// as usual.
	Err error
	// After carries out the request first, and then delays or replaces the answer: the write is stored, and its
	// client does not know.
	//
	// Such a fault also affects open watches. Each batch of their events is delayed (a delay of more than a minute
	// ends the watch). With Err, the watch ends after one batch: with an ERROR event, or by a cut connection.
	After bool
	// Skip is how many matching requests are not affected at first, and Times how many are affected after that. If
	// Times is 0, all are affected until Remove.
	Skip, Times int
}

// Injection is an active Fault. Its methods are safe for concurrent use.
type Injection struct {
	fault  Fault
	faults *faults
	hits   int // guarded by faults.mu
	seen   int
}

// Inject activates a fault for requests that arrive from now on. If several faults match a request, the first
// injected one applies.
//
//	env.Inject(testenv.Fault{
//		Match: testenv.Match{Verb: "update", Resource: "sites.example.com/status"},
//		Err:   apierrors.NewConflict(schema.GroupResource{Resource: "sites"}, "blog", errors.New("try again")),
//		Times: 3,
//	})
func (e *Environment) Inject(f Fault) *Injection { return e.traffic.faults.inject(f) }

// Remove ends the fault. Requests that it has delayed continue to wait.
func (i *Injection) Remove() {
	i.faults.mu.Lock()
	defer i.faults.mu.Unlock()
	i.faults.drop(i)
}

// Hits returns how many requests the fault has affected so far.
func (i *Injection) Hits() int {
	i.faults.mu.Lock()
	defer i.faults.mu.Unlock()
	return i.hits
}

// faults holds the active faults. Its zero value has none, and its methods are safe for concurrent use. Requests
// read all without the lock.
type faults struct {
	mu sync.Mutex // guards hits and seen of each Injection, and the replacement of all
	// all points to a slice that is replaced and never changed, so that requests read it without the lock; nil is
	// none.
	all atomic.Pointer[[]*Injection]
}

func (f *faults) inject(fault Fault) *Injection {
	i := &Injection{fault: fault, faults: f}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.replace(append(slices.Clip(f.inForce()), i))
	return i
}

// drop ends a fault. The caller holds the lock.
func (f *faults) drop(i *Injection) {
	f.replace(slices.DeleteFunc(slices.Clone(f.inForce()), func(o *Injection) bool { return o == i }))
}

func (f *faults) replace(all []*Injection) {
	if len(all) == 0 {
		f.all.Store(nil)
		return
	}
	f.all.Store(&all)
}

func (f *faults) inForce() []*Injection {
	if all := f.all.Load(); all != nil {
		return *all
	}
	return nil
}

// The kinds of faults that take looks for: faults before a request is carried out, after it, or both.
func early(f *Fault) bool { return !f.After }
func late(f *Fault) bool  { return f.After }
func either(*Fault) bool  { return true }

// take returns the first active fault of a kind that matches a call, and counts the call; nil if there is none.
func (f *faults) take(c *Call, sort func(*Fault) bool) *Fault {
	for _, i := range f.inForce() {
		if sort(&i.fault) && i.fault.Match.matches(c) && f.hit(i) {
			c.Fault = true
			return &i.fault
		}
	}
	return nil
}

// hit counts a call that matches a fault. It reports whether the fault applies: Skip may exclude the call, or
// another request may have been the last one.
func (f *faults) hit(i *Injection) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.Contains(f.inForce(), i) {
		return false
	}
	if i.seen++; i.seen <= i.fault.Skip {
		return false
	}
	if i.hits++; i.hits == i.fault.Times {
		f.drop(i)
	}
	return true
}
