package flowcontrol

import (
	"container/list"
	"context"
	"sync"
)

// Turns give a few places to users in turns: each place that is given back goes to the user who has waited for a turn
// longest, and there to the request that has. However many requests one user has, another one's waits for a place as
// many times as there are users. The methods are safe for concurrent use.
type Turns struct {
	mu    sync.Mutex
	free  int                      // places; none while somebody waits
	users map[string]*list.Element // of order
	order *list.List               // of *turn: the users who wait, the next one first
}

// turn is a user who waits, with the requests in their order: chan struct{}, closed when there is a place.
type turn struct {
	user     string
	requests *list.List
}

// NewTurns returns turns for so many places.
func NewTurns(places int) *Turns {
	return &Turns{free: places, users: map[string]*list.Element{}, order: list.New()}
}

// TryTake takes a place if one is free. After true, the caller calls Leave.
func (t *Turns) TryTake() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.free == 0 {
		return false
	}
	t.free--
	return true
}

// Take waits for a place until ctx ends, whose error it then returns. After nil, the caller calls Leave.
func (t *Turns) Take(ctx context.Context, user string) error {
	ready, request := t.enqueue(user)
	if ready == nil {
		return nil
	}
	select {
	case <-ready:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-ready: // at the last moment
		t.give()
	default:
		t.remove(t.users[user], request)
	}
	return ctx.Err()
}

// enqueue takes a place, or returns what is closed when there is one.
func (t *Turns) enqueue(user string) (ready chan struct{}, request *list.Element) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.free > 0 {
		t.free--
		return nil, nil
	}
	if t.users[user] == nil {
		t.users[user] = t.order.PushBack(&turn{user, list.New()})
	}
	ready = make(chan struct{})
	return ready, t.users[user].Value.(*turn).requests.PushBack(ready)
}

// remove takes a request out of its user's queue.
func (t *Turns) remove(of, request *list.Element) {
	its := of.Value.(*turn)
	its.requests.Remove(request)
	if its.requests.Len() == 0 {
		t.order.Remove(of)
		delete(t.users, its.user)
	}
}

// give gives a place to whose turn it is.
func (t *Turns) give() {
	next := t.order.Front()
	if next == nil {
		t.free++
		return
	}
	t.order.MoveToBack(next)
	request := next.Value.(*turn).requests.Front()
	close(request.Value.(chan struct{}))
	t.remove(next, request)
}

// Waiting is how many requests of a user wait.
func (t *Turns) Waiting(user string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if of := t.users[user]; of != nil {
		return of.Value.(*turn).requests.Len()
	}
	return 0
}

// Leave gives a place back.
func (t *Turns) Leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.give()
}
