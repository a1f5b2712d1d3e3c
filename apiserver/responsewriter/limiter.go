// Package responsewriter sends responses, and owns everything that a request takes from the resources that all requests
// of a server share. Handlers decide and encode; when a byte may be held, encoded or sent is decided here.
//
// A Limiter belongs to a server, and a Writer to a request: it is the innermost http.ResponseWriter. Objects are sent
// by Writer.WriteBody, lists by a List and the events of watches by a Stream, which handlers fill by Append.
//
//	event                  memory                  seats              slot                client
//	a request arrives      HTTP/2: counted                                                share of its connection
//	before its handler                             TakeSeats waits
//	its body is read       reserved as it grows    yielded if slow                        may have to give way
//	before an object is    Reserve waits           yielded if slow
//	decoded or encoded
//	before a long list is                          list and watch:    acquire waits
//	selected or encoded                            given up
//	before a chunk is                              released if slow   released            may have to give way
//	written
//	a chunk was written    Stream: released                           acquired again
//	the request ends       Close releases all      ReleaseSeats       Close releases it
//
// # Invariants
//
// Each of them has a test, here or in package apiserver.
//
//   - A reservation is released exactly once. It is an Account of the Writer, which Close empties; a Writer from Fork
//     has an Account of its own.
//   - A request that waits for memory or for its client for longer than slowAfter holds no seats, so that a slow
//     client does not delay requests that need neither. It takes seats again before it goes on, unless it is a list
//     or a watch.
//   - A request that holds a slot waits neither for memory nor for a client: the requests that hold the memory may need
//     a slot before they can release it.
//   - A request waits for all the memory of a step at once. If it held a part while it waited for the rest, two
//     requests could wait for each other. Where a reservation must grow (a body), package budget breaks the deadlock:
//     it rejects one of the waiting requests.
//   - A request that would not fit into an empty budget is rejected with 413, and one that does not get its memory, its
//     seats or its first slot in time with 429.
//   - A client that other requests wait for is cut off once it is slower than clientPace.
//   - Members of system:masters never wait for memory: administrators must be able to repair an overloaded server.
//
// # Concurrency
//
// A Limiter is safe for concurrent use. A Writer, its List and its Stream are for the goroutine of the request's
// handler. The exception is a function that runs on a timer while that goroutine waits: whenSlow guarantees that it
// has returned before the goroutine goes on. Another goroutine that works for the request needs a Writer of its own
// (Fork).
package responsewriter

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/coxswain-dev/coxswain/apiserver/budget"
	"github.com/coxswain-dev/coxswain/apiserver/flowcontrol"
	"github.com/coxswain-dev/coxswain/apiserver/flowcontrol/config"
)

// Options make a Limiter.
type Options struct {
	// RequestMemory is the number of bytes that requests may reserve together. 0 follows the memory limit of the
	// process, if it has one, and a negative number sets no limit.
	RequestMemory int64
	// MemoryWait is the longest time that a request waits for memory.
	MemoryWait time.Duration
	// StreamMemory is the number of bytes that the requests of HTTP/2 connections may take where RequestMemory sets no
	// limit; a negative number sets no limit.
	StreamMemory int64
	// WatchesPerUser is the number of watches that one user may have. A negative number sets no limit, and members of
	// system:masters have none.
	WatchesPerUser int
}

// Limiter bounds the memory, seats, slots and watches of all requests of a server together. Its methods are safe for
// concurrent use.
type Limiter struct {
	// Memory is the budget for the memory of requests. Watches may take as much again (watchMemory), and so may
	// connections (ConnectionMemory).
	Memory *budget.Budget
	// Flow gives requests their seats; nil without API Priority and Fairness. It is set before the first request.
	Flow *config.Follower

	// slots bound how many long lists are selected or encoded at the same time (slot.go).
	slots *flowcontrol.Slots
	// userWatches counts the watches of each user. watches counts the watches of all users that this server answers
	// itself, which bounds their memory.
	userWatches flowcontrol.PerUser
	watches     atomic.Int64
	// streams is the number of bytes that the requests of HTTP/2 connections take (http2.go). It is bounded by a part
	// of Memory or, if that has no limit, by streamMemory.
	streams      atomic.Int64
	streamMemory int64
}

// NewLimiter returns a Limiter without Flow.
func NewLimiter(o Options) *Limiter {
	return &Limiter{
		Memory:       newBudget(o.RequestMemory, o.MemoryWait),
		slots:        flowcontrol.NewSlots(max(runtime.GOMAXPROCS(0)/2, 1)),
		userWatches:  flowcontrol.PerUser{Max: o.WatchesPerUser},
		streamMemory: o.StreamMemory,
	}
}

// newBudget returns the budget for Options.RequestMemory. A budget that follows the process's limit begins with half of
// it; Budget.Follow adjusts that once the server runs.
func newBudget(size int64, wait time.Duration) *budget.Budget {
	if limit := budget.ProcessLimit(); size == 0 && limit > 0 {
		return budget.New(limit/2, wait)
	}
	return budget.New(max(size, 0), wait)
}
