package apiserver

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/budget"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/storage"
)

// freeMemory is how many bytes each request has without asking: seats bound how many of them there are. Heartbeats,
// leader elections and most other requests need no more and never wait for memory.
const freeMemory = 16 << 10

// How many bytes are counted for a connection and for a watch while nothing is sent. All connections together may take
// as much as the budget of requests, and so may all watches. beginningMemory is what a watch takes of the budget beside
// that while it sends what it begins with: a batch of events, two chunks of them encoded, and buffers on their way.
const (
	connectionMemory = 48 << 10
	watchMemory      = 16 << 10
	beginningMemory  = 64 << 10
)

// newMemory returns the budget of requests in bytes. 0 follows the process's limit, a negative number is no limit.
func newMemory(size int64, wait time.Duration) *budget.Budget {
	if limit := budget.ProcessLimit(); size == 0 && limit > 0 {
		return budget.New(limit/2, wait) // Follow keeps it right
	}
	return budget.New(max(size, 0), wait)
}

// charge takes n more bytes of the budget until the request ends, and waits until they are free. Members of
// system:masters do not wait: they must be able to mend an overloaded server.
func (r *request) charge(n int64) error {
	if n <= freeMemory || r.memory.Try(n) {
		return nil
	}
	over := r.aside()
	err := r.awaitMemory(n)
	if full := over(); err == nil {
		err = full
	}
	return err
}

// awaitMemory is charge for a request that waits anyway.
func (r *request) awaitMemory(n int64) error {
	if r.memory.Size() > 0 && r.user().In(authn.GroupMasters) {
		r.memory.Force(n)
		return nil
	}
	err := r.memory.Charge(r.Context(), n)
	if errors.Is(err, budget.ErrFull) {
		return tooMany()
	}
	return err
}

// A client that has memory of the budget wait for it must read or send at a pace, or else give way to requests that
// wait for memory: each piece within clientPause, and the time that its bytes take at clientPace, in bytes per second.
const (
	clientPause = 3 * time.Second
	clientPace  = 256 << 10
)

// lateAfter is when a client that begins to read or to send n bytes now is late.
func lateAfter(n int) time.Time {
	return time.Now().Add(clientPause + time.Duration(n)*time.Second/clientPace)
}

// lend lends what the request holds while its client is to read n bytes. A client that gives way is cut off.
func (r *response) lend(n int) *budget.Loan {
	if r.memory.Held() == 0 {
		return nil
	}
	return r.memory.Lend(lateAfter(n), r.cutOff)
}

// chargeWeight charges what decoding the body takes, of which some has been charged already, and what the object takes
// that the body is to change: in one step, since somebody who holds a part of what they need while they wait for the
// rest keeps others waiting. A request that would not fit if it were alone is refused.
func (r *request) chargeWeight(weight int64) error {
	what := "the body"
	if r.objects != nil && r.name != "" && (r.verb == "update" || r.verb == "patch") {
		current, err := r.objects.Get(r.Context(), r.namespace, r.name, storage.At{Any: true})
		if err == nil {
			r.ahead = encoding.ObjectWeight * int64(len(current.JSON))
			what += " and the object that it changes"
		}
	}
	weight += r.ahead
	if size := r.memory.Size(); size > 0 && weight > size {
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf(
			"decoding %s would take about %d bytes of memory, and all requests together may use %d", what, weight,
			size))
	}
	return r.charge(weight - r.memory.Held())
}

// chargeProtobuf is chargeWeight for a body in protobuf. One that is nested too deeply is refused.
func (r *request) chargeProtobuf(body []byte, into any) error {
	if len(body) <= freeMemory {
		return nil
	}
	weight, err := encoding.ProtobufWeight(body, into)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	return r.chargeWeight(weight)
}

// chargeObject charges what a write does to a stored object, unless it has been charged with the body.
func (r *request) chargeObject(o *storage.Object) error {
	return r.charge(encoding.ObjectWeight*int64(len(o.JSON)) - r.ahead)
}

// gzipMemory is what a compressor takes.
const gzipMemory = 1 << 20

// pointer is the size of one.
const pointer = 8

// listMemory is what encoding a list takes beside its documents, which are the store's, and what has been charged.
func (r *request) listMemory(form *encoding.Form, items []*storage.Object) int64 {
	if r.memory.Size() == 0 {
		return 0
	}
	total, largest := 0, 0
	for _, o := range items {
		total, largest = total+len(o.JSON), max(largest, len(o.JSON))
	}
	need := max(int64(pointer*len(items))-r.memory.Held(), 0) + int64(min(2*listChunk, total))
	need += form.ObjectMemory(largest)
	if r.out.Gzip && total > gzipThreshold {
		need += gzipMemory
	}
	if r.res.WebhookConverted {
		need += form.ObjectMemory(total)
	}
	return need
}

// maxWhole is how much of the budget a list may take to be encoded in one piece.
const maxWhole = 8

// whole reports whether a list of so many bytes may be encoded in one piece. Its memory is charged.
func (r *request) whole(size int) bool {
	limit := r.memory.Size()
	return limit == 0 || int64(size) <= limit/maxWhole && r.memory.Try(int64(size))
}

// holdPast charges documents of the past, which are read from etcd for this request alone. A list of them that could
// never fit must be asked for in pages.
func (r *request) holdPast(bytes int) error {
	n := 2 * int64(bytes)
	if size := r.memory.Size(); size > 0 && r.memory.Held()+n > size {
		return apierrors.NewRequestEntityTooLargeError("the list is at a revision of the past and takes more memory " +
			"than all requests together may use: limit its pages")
	}
	return r.charge(n)
}

// takeWatch counts a watch; false if there is no memory for more. leaveWatch must follow in any case.
func (s *Server) takeWatch() bool {
	n, most := s.watching.Add(1), s.memory.Size()
	return most == 0 || n*watchMemory <= most
}

func (s *Server) leaveWatch() { s.watching.Add(-1) }

// selected makes a list's selector return false for all objects once nobody waits for the list. Then ended returns why.
func selected(ctx context.Context, scope *storage.Scope) (ended func() error) {
	match := scope.Match
	if match == nil {
		return func() error { return nil }
	}
	var err error
	n := 0
	scope.Match = func(o *storage.Object) bool {
		if n++; n%256 == 0 && err == nil {
			err = ctx.Err()
		}
		return err == nil && match(o)
	}
	return func() error { return err }
}
