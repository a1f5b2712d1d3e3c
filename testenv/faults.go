package testenv

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// ErrNoAnswer, as Fault.Err, cuts the connection: the client gets no answer, and does not learn whether the request was
// carried out.
var ErrNoAnswer = errors.New("the connection is cut")

// Fault is something that goes wrong with requests inside the API server.
type Fault struct {
	// Match chooses the requests.
	Match Match
	// Delay is how long the request waits, by the machine's clock. It gets no answer if the API server stops meanwhile.
	Delay time.Duration
	// Err is the answer: an error of k8s.io/apimachinery/pkg/api/errors as it is (errors.NewConflict …), any other as
	// an internal error, or ErrNoAnswer. With nil the request is answered as usual.
	Err error
	// After has the request carried out first, and then delays or replaces the answer: what was written is stored,
	// and its writer does not know.
	//
	// Of watches, these are the ones that are open, too: each of their batches of events is delayed (a delay of more
	// than a minute ends the watch), and after one batch Err ends the watch, as an ERROR event or by a cut connection.
	After bool
	// Skip is how many requests are spared first, and Times how many the fault is for then; 0 is all until it is
	// removed.
	Skip, Times int
}

// Injection is a Fault in force. Its methods are safe for concurrent use.
type Injection struct {
	fault  Fault
	faults *faults
	hits   int // guarded by faults.mu
	seen   int
}

// Inject puts a fault in force for requests that come from now on. Where several match, the one that was injected first
// is taken.
//
//	env.Inject(testenv.Fault{
//		Match: testenv.Match{Verb: "update", Resource: "sites.example.com/status"},
//		Err:   apierrors.NewConflict(schema.GroupResource{Resource: "sites"}, "blog", errors.New("try again")),
//		Times: 3,
//	})
func (e *Environment) Inject(f Fault) *Injection { return e.traffic.faults.inject(f) }

// Remove ends the fault. Requests that it has delayed go on waiting.
func (i *Injection) Remove() {
	i.faults.mu.Lock()
	defer i.faults.mu.Unlock()
	i.faults.drop(i)
}

// Hits is how many requests it was for so far.
func (i *Injection) Hits() int {
	i.faults.mu.Lock()
	defer i.faults.mu.Unlock()
	return i.hits
}

// faults are those in force. Its zero value has none, and its methods are safe for concurrent use.
type faults struct {
	mu sync.Mutex
	// all is replaced and never changed, so that requests read it without the lock; nil is none.
	all atomic.Pointer[[]*Injection]
}

func (f *faults) inject(fault Fault) *Injection {
	i := &Injection{fault: fault, faults: f}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.replace(append(slices.Clip(f.inForce()), i))
	return i
}

// drop ends a fault. The lock is held.
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

// Which faults may be for a request: those before it is carried out, those after, or both.
func early(f *Fault) bool { return !f.After }
func late(f *Fault) bool  { return f.After }
func either(*Fault) bool  { return true }

// take returns the fault of a sort that is for a call, and counts it; nil if there is none.
func (f *faults) take(c *Call, sort func(*Fault) bool) *Fault {
	for _, i := range f.inForce() {
		if sort(&i.fault) && i.fault.Match.matches(c) && f.hit(i) {
			c.Fault = true
			return &i.fault
		}
	}
	return nil
}

// hit counts a call that a fault is for. It reports false where the fault spares it.
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
