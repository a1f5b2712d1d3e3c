package flowcontrol

import (
	"container/list"
	"context"
	"sync"
)

// Slots is a concurrency limit that is fair among users: free slots go around the users with waiting requests, and to
// the request of the user that has waited longest. So the first request of a user waits for at most as many slots as
// there are waiting users, even if one of them has many requests. The methods are safe for concurrent use.
//
// A slot is passed on under mu. It is either counted in free, or it belongs to a request: one that got it at once, or
// one with a closed channel. A request that gives up at the moment when its channel is closed passes the slot on.
type Slots struct {
	mu    sync.Mutex               // guards all fields
	free  int                      // slots; 0 while a request waits
	users map[string]*list.Element // the elements of order, by user; no user without a waiting request
	order *list.List               // of *waitingUser, the next one to be served first
}

// waitingUser is a user with waiting requests, in order of arrival. A request is a chan struct{}: it is closed when the
// request has a slot.
type waitingUser struct {
	name     string
	requests *list.List
}

// NewSlots returns n free slots.
func NewSlots(n int) *Slots {
	return &Slots{free: n, users: map[string]*list.Element{}, order: list.New()}
}

// TryTake takes a slot if one is free. After true, the caller must call Leave.
func (s *Slots) TryTake() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.free == 0 {
		return false
	}
	s.free--
	return true
}

// Take waits for a slot. If ctx ends before, it returns the context's error. After nil, the caller must call Leave.
func (s *Slots) Take(ctx context.Context, user string) error {
	ready, request := s.enqueue(user)
	if ready == nil {
		return nil
	}
	select {
	case <-ready:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-ready: // at the same time: pass the slot on
		s.pass()
	default:
		s.remove(s.users[user], request)
	}
	return ctx.Err()
}

// enqueue takes a slot if one is free, and returns nil. Otherwise it adds a request, and returns the channel that is
// closed when the request has a slot.
func (s *Slots) enqueue(user string) (ready chan struct{}, request *list.Element) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.free > 0 {
		s.free--
		return nil, nil
	}
	if s.users[user] == nil {
		s.users[user] = s.order.PushBack(&waitingUser{user, list.New()})
	}
	ready = make(chan struct{})
	return ready, s.users[user].Value.(*waitingUser).requests.PushBack(ready)
}

// remove removes a request from its user's queue, and the user after its last request. s.mu is held.
func (s *Slots) remove(user, request *list.Element) {
	u := user.Value.(*waitingUser)
	u.requests.Remove(request)
	if u.requests.Len() == 0 {
		s.order.Remove(user)
		delete(s.users, u.name)
	}
}

// pass passes a slot to the next waiting request, or frees it. s.mu is held.
func (s *Slots) pass() {
	next := s.order.Front()
	if next == nil {
		s.free++
		return
	}
	s.order.MoveToBack(next)
	request := next.Value.(*waitingUser).requests.Front()
	close(request.Value.(chan struct{}))
	s.remove(next, request)
}

// Waiting returns the number of a user's waiting requests.
func (s *Slots) Waiting(user string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if u := s.users[user]; u != nil {
		return u.Value.(*waitingUser).requests.Len()
	}
	return 0
}

// Leave gives a slot back.
func (s *Slots) Leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pass()
}
