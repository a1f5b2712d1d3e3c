package apiserver

import (
	"time"

	"github.com/coxswain-dev/coxswain/apiserver/budget"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
)

// Limits keep one client, or many, from using all resources of the server. 0 means the default, a negative number no
// limit.
type Limits struct {
	// RequestsInFlight and MutatingRequestsInFlight are how many requests are served at once
	// (--max-requests-inflight: 400, --max-mutating-requests-inflight: 200). Their sum is the seats
	// that API Priority and Fairness divides, for which no limit counts as nothing.
	RequestsInFlight, MutatingRequestsInFlight int
	// NoPriorityAndFairness disables API Priority and Fairness (--enable-priority-and-fairness=false). The two are then
	// limits of their own, one for requests that read and one for the others. Watches are not counted then, and
	// members of system:masters are never rejected.
	NoPriorityAndFairness bool
	// ConnectionsPerClient is how many TCP connections one IPv4 address or IPv6 network of 64 bits may have: 4096.
	ConnectionsPerClient int
	// StreamsPerConnection is how many requests one HTTP/2 connection may have under way
	// (--http2-max-streams-per-connection): 100, as in kube-apiserver. It has no negative value.
	StreamsPerConnection int
	// StreamMemory is how many bytes the requests of HTTP/2 connections may take together if RequestMemory has no
	// limit: a sixteenth of the machine's memory.
	StreamMemory int64
	// WatchesPerUser is how many watches one user may have: 10,000. Members of system:masters have no limit.
	WatchesPerUser int
	// RequestMemory is how many bytes requests may hold together beside the objects of the store
	// (--max-request-memory). The default is half of the memory that the limit of Go's runtime leaves, or no limit if
	// the runtime has none.
	RequestMemory int64
}

// LeastRequestMemory is the least budget of requests, in bytes. Any object that etcd accepts can be replaced within it:
// both the body, of a megabyte and a half, and the stored object are decoded. Watches and connections have limits of
// the same size, which are several times the need of a control plane.
const LeastRequestMemory = (encoding.ObjectWeight+encoding.BodyWeight)*largestObject + 1<<20

// largestObject is the maximum size of a request to etcd, in bytes.
const largestObject = 3 << 19

// The default of StreamMemory is the machine's memory divided by streamShare, but at least leastStreamMemory, which is
// enough for some thousand requests.
const (
	streamShare       = 16
	leastStreamMemory = 64 << 20
)

// headerTimeout limits the time for the TLS handshake, and for the headers of a request.
const headerTimeout = 10 * time.Second

// withDefaults returns the limits with defaults for the fields that are 0.
func (l Limits) withDefaults() Limits {
	for field, value := range map[*int]int{
		&l.RequestsInFlight: 400, &l.MutatingRequestsInFlight: 200,
		&l.ConnectionsPerClient: 4096, &l.StreamsPerConnection: 100, &l.WatchesPerUser: 10_000,
	} {
		if *field == 0 {
			*field = value
		}
	}
	if l.StreamMemory == 0 {
		l.StreamMemory = max(budget.MachineMemory()/streamShare, leastStreamMemory)
	}
	return l
}
