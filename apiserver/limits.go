package apiserver

import (
	"time"

	"github.com/coxswain-dev/coxswain/apiserver/budget"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
)

// Limits keep one client, or many, from taking all that the server has. 0 is the default, a
// negative number no limit.
type Limits struct {
	// RequestsInFlight and MutatingRequestsInFlight are how many requests are served at once
	// (--max-requests-inflight: 400, --max-mutating-requests-inflight: 200). Their sum is the seats
	// that API Priority and Fairness divides, for which no limit counts as nothing.
	RequestsInFlight, MutatingRequestsInFlight int
	// NoPriorityAndFairness takes the two as limits of their own in its stead, one for requests that read
	// and one for the others (--enable-priority-and-fairness=false). Watches are not counted then, and
	// members of system:masters are never refused.
	NoPriorityAndFairness bool
	// ConnectionsPerClient is how many TCP connections one IPv4 address or IPv6 network of 64 bits may have: 4096.
	ConnectionsPerClient int
	// StreamsPerConnection is how many requests one HTTP/2 connection may have under way
	// (--http2-max-streams-per-connection): 100, as in kube-apiserver. It has no negative value.
	StreamsPerConnection int
	// StreamMemory is how many bytes the requests of HTTP/2 connections may take together where RequestMemory has no
	// limit: a sixteenth of the machine's memory.
	StreamMemory int64
	// WatchesPerUser is how many watches one user may have that is not a member of
	// system:masters: 10,000.
	WatchesPerUser int
	// RequestMemory is how many bytes requests may hold together beside the objects that the store holds
	// (--max-request-memory). The default is a half of what the limit of Go's runtime leaves, or none if there is no
	// such limit.
	RequestMemory int64
}

// LeastRequestMemory is the least budget of requests, in bytes. Any object that etcd takes can be replaced within it:
// both the body, of a megabyte and a half, and the stored object are decoded. Watches and connections have limits of
// the same size; those of a control plane fit several times.
const LeastRequestMemory = (encoding.ObjectWeight+encoding.BodyWeight)*largestObject + 1<<20

// largestObject is the most that etcd takes in a request.
const largestObject = 3 << 19

// How many bytes the requests of HTTP/2 connections may take together by default: a part of the machine's memory, but
// not less than enough for some thousand of them.
const (
	streamShare       = 16
	leastStreamMemory = 64 << 20
)

// headerTimeout is how long a client may take for its TLS handshake, and for the headers of
// a request.
const headerTimeout = 10 * time.Second

func (l Limits) withDefaults() Limits {
	for at, otherwise := range map[*int]int{
		&l.RequestsInFlight: 400, &l.MutatingRequestsInFlight: 200,
		&l.ConnectionsPerClient: 4096, &l.StreamsPerConnection: 100, &l.WatchesPerUser: 10_000,
	} {
		if *at == 0 {
			*at = otherwise
		}
	}
	if l.StreamMemory == 0 {
		l.StreamMemory = max(budget.MachineMemory()/streamShare, leastStreamMemory)
	}
	return l
}
