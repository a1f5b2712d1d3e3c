package responsewriter

import (
	"context"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/status"
)

// LongList is the least number of objects that make a list, or the initial events of a watch, long: they are selected
// and encoded in slots.
const LongList = 1000

// maxWaiting is the number of requests of one user that may wait for their first slot: as many as kube-apiserver lets
// wait of one flow (KEP-1040: a hand of 6 queues of 50).
const maxWaiting = 300

// slot is the right to select or encode a part of a long list. There are few slots, so that processors are left for
// other requests, and the users that wait have them in turns. A list is encoded chunk by chunk: it releases its slot
// before each write, and waits for another one after it. Between slots it uses no processor and, once it has had to
// wait, holds no seats.
type slot struct {
	w      *Writer
	needed bool // something long is selected or encoded
	active bool // the slot is held
	begun  bool // it has been acquired before, or waited for
}

// acquire waits for a slot until ctx ends, unless a slot is held or none is needed. The first one may be rejected.
// Later ones are not: the server has done a part of the work by then.
func (s *slot) acquire(ctx context.Context) error {
	if !s.needed || s.active {
		return nil
	}
	slots, first := s.w.limiter.slots, !s.begun
	s.begun = true
	if s.active = slots.TryTake(); s.active {
		return nil
	}
	user := authn.UserFrom(ctx).Name
	if first && slots.Waiting(user) >= maxWaiting {
		return status.TooManyRequests()
	}
	if s.w.needsNoMoreSeats() {
		s.w.ReleaseSeats()
	}
	err := slots.Take(ctx, user)
	s.active = err == nil
	return err
}

// release passes a slot that is held to the next request. It may be called at any time.
func (s *slot) release() {
	if s.active {
		s.active = false
		s.w.limiter.slots.Leave()
	}
}

// reserve reserves n more bytes. Waiting for them happens without the slot: the requests that hold memory may have to
// wait for a slot before they can release it.
func (s *slot) reserve(ctx context.Context, n int64) error {
	if n <= FreeMemory || s.w.memory.Try(n) {
		return nil
	}
	s.release()
	if err := s.w.Reserve(ctx, n); err != nil {
		return err
	}
	return s.acquire(ctx)
}
