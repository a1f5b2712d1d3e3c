package apiserver

import "context"

// longList is from how many objects on a list or the beginning of a watch waits for its turns.
const longList = 1000

// turnsWaiting is how many requests of one user may wait for their first turn: as many as kube-apiserver lets wait of
// one flow (KEP-1040: a hand of 6 queues of 50).
const turnsWaiting = 300

// turn is the turn of a long list, or of the events that a long watch begins with, at the processors: in one of a few
// places it is selected, and encoded chunk by chunk, so that the time of the processors is for others as well. Between
// its turns it holds no processor and, once it has had to wait, no seats of flow control: other requests need not wait
// for it. Users have their turns one after the other.
type turn struct {
	s      *Server
	r      *request
	needed bool // by something long
	held   bool
	begun  bool // it has had a turn
}

// take waits for a place until ctx ends. It does nothing if one is held, or none is needed.
func (t *turn) take(ctx context.Context) error {
	if !t.needed || t.held {
		return nil
	}
	begun, user := t.begun, t.r.user().Name
	t.begun = true
	if t.held = t.s.places.TryTake(); t.held {
		return nil
	}
	if !begun && t.s.places.Waiting(user) >= turnsWaiting {
		return tooMany()
	}
	if t.r.seat != nil && (t.r.verb == "list" || t.r.verb == "watch") { // which are done when this is sent
		t.s.leaveSeat(t.r.seat)
	}
	err := t.s.places.Take(ctx, user)
	t.held = err == nil
	return err
}

// leave gives the place to the next one, if it is held.
func (t *turn) leave() {
	if t.held {
		t.held = false
		t.s.places.Leave()
	}
}
