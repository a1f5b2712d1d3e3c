package apiserver

// longList is from how many objects on a list waits for its turns.
const longList = 1000

// listsWaiting is how many lists of one user may wait for their first turn: as many as kube-apiserver lets wait of one
// flow (KEP-1040: a hand of 6 queues of 50).
const listsWaiting = 300

// listTurn is the turn of a long list at the processors: in one of a few places it is selected, and encoded chunk by
// chunk, so that the time of the processors is for others as well. Between its turns it holds no processor and, once
// it has had to wait, no seats of flow control: other requests need not wait for it. Users have their turns one after
// the other.
type listTurn struct {
	s      *Server
	r      *request
	needed bool // by a long list
	held   bool
	begun  bool // it has had a turn
}

// take waits for a place until the request ends. It does nothing if one is held, or none is needed.
func (t *listTurn) take() error {
	if !t.needed || t.held {
		return nil
	}
	begun, user := t.begun, t.r.user().Name
	t.begun = true
	if t.held = t.s.places.TryTake(); t.held {
		return nil
	}
	if !begun && t.s.places.Waiting(user) >= listsWaiting {
		return tooMany()
	}
	if t.r.seat != nil && t.r.verb == "list" { // which is done when it is sent
		t.s.leaveSeat(t.r.seat)
	}
	err := t.s.places.Take(t.r.Context(), user)
	t.held = err == nil
	return err
}

// leave gives the place to the next one, if it is held.
func (t *listTurn) leave() {
	if t.held {
		t.held = false
		t.s.places.Leave()
	}
}
