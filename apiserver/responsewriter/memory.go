package responsewriter

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/budget"
	"github.com/coxswain-dev/coxswain/apiserver/status"
)

// Memory is reserved before it is allocated, by estimates (encoding.Weight, encoding.Form.ObjectMemory). A
// reservation only grows until the request ends: Go's garbage collector decides when memory is free again, and by
// then most requests have ended. Streams are the exception (Stream.send).

// FreeMemory is the number of bytes that each request has without a reservation: seats bound how many requests there
// are. Heartbeats, leader elections and most other requests need no more, and never wait for memory.
const FreeMemory = 16 << 10

// ConnectionMemory and watchMemory are the numbers of bytes that are counted for a connection and for a watch at rest.
// All connections together may take as much as the budget has, and so may all watches.
const (
	ConnectionMemory = 48 << 10
	watchMemory      = 16 << 10
)

// Limited reports whether there is a budget for the memory of requests.
func (w *Writer) Limited() bool { return w.memory.Size() > 0 }

// Reserve reserves n more bytes until the request ends, and waits until they are free. Up to FreeMemory no reservation
// is made.
func (w *Writer) Reserve(ctx context.Context, n int64) error {
	if n <= FreeMemory || w.memory.Try(n) {
		return nil
	}
	resume := w.yieldSeats(ctx)
	err := w.reserve(ctx, n)
	if full := resume(); err == nil {
		err = full
	}
	return err
}

// reserve reserves n more bytes for a request that has yielded its seats or has none. FreeMemory does not count.
func (w *Writer) reserve(ctx context.Context, n int64) error {
	if w.Limited() && authn.UserFrom(ctx).In(authn.GroupMasters) {
		w.memory.Force(n)
		return nil
	}
	err := w.memory.Charge(ctx, n)
	if errors.Is(err, budget.ErrFull) {
		return status.TooManyRequests()
	}
	return err
}

// ReserveWrite raises the reservation to the sum of body, the number of bytes for decoding the body, and object, that
// for changing the stored object, which is 0 if there is none. A part may have been reserved while the body was read;
// the rest is reserved in one step. A write that would not fit into an empty budget is rejected.
func (w *Writer) ReserveWrite(ctx context.Context, body, object int64) error {
	total := body + object
	if size := w.memory.Size(); size > 0 && total > size {
		subject := "the body"
		if object > 0 {
			subject += " and the object that it changes"
		}
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf(
			"decoding %s would take about %d bytes of memory, and all requests together may use %d", subject, total,
			size))
	}
	if err := w.Reserve(ctx, total-w.memory.Reserved()); err != nil {
		return err
	}
	w.object = object
	return nil
}

// ReserveObject raises the reservation for the stored object that is being changed to n bytes. A request changes one
// object at a time: bytes that ReserveWrite, Fork or an earlier call has reserved for an object count.
func (w *Writer) ReserveObject(ctx context.Context, n int64) error {
	if n-w.object <= FreeMemory {
		return nil
	}
	if err := w.Reserve(ctx, n-w.object); err != nil {
		return err
	}
	w.object = n
	return nil
}

// Fork makes part the Writer of a part of the request that another goroutine does, after reserving the n bytes that
// changing a stored object takes there. The other goroutine closes it. The parent's goroutine waits for the memory:
// only it may yield the request's seats, which part does not have.
func (w *Writer) Fork(ctx context.Context, part *Writer, n int64) error {
	part.audit = w.audit
	if w.limiter == nil {
		return nil
	}
	part.limiter, part.request, part.object = w.limiter, w.request, n
	part.memory = w.limiter.Memory.Open()
	if n <= FreeMemory || part.memory.Try(n) {
		return nil
	}
	resume := w.yieldSeats(ctx)
	err := part.reserve(ctx, n)
	if full := resume(); err == nil {
		err = full
	}
	if err != nil {
		part.Close()
	}
	return err
}
