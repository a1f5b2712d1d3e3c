package flowcontrol

import "sync"

// InFlight limits how many requests are served at once where API Priority and Fairness is off. Writes and reads have
// places of their own, so that neither can starve the other. It is safe for concurrent use.
type InFlight struct{ reads, writes places }

// places is as many as the channel holds; nil has no bound.
type places chan struct{}

func newPlaces(n int) places {
	if n < 0 {
		return nil
	}
	return make(places, n)
}

// NewInFlight returns limits to the requests that read and to those that write. A negative one is no limit.
func NewInFlight(reads, writes int) *InFlight {
	return &InFlight{reads: newPlaces(reads), writes: newPlaces(writes)}
}

func (l *InFlight) of(reads bool) places {
	if reads {
		return l.reads
	}
	return l.writes
}

// Take takes a place. It returns false if there is none. After true, the caller calls Leave.
func (l *InFlight) Take(reads bool) bool {
	at := l.of(reads)
	if at == nil {
		return true
	}
	select {
	case at <- struct{}{}:
		return true
	default:
		return false
	}
}

// Leave gives a place back.
func (l *InFlight) Leave(reads bool) {
	if at := l.of(reads); at != nil {
		<-at
	}
}

// PerUser limits how many long-running requests each user has. It is safe for concurrent use.
type PerUser struct {
	// Most is how many one user may have; a negative number is no limit.
	Most int

	mu     sync.Mutex
	byUser map[string]int
}

// Take counts a request of a user. It returns false if that user has as many as one may have. After true, the caller
// calls Leave.
func (l *PerUser) Take(user string) bool {
	if l.Most < 0 {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byUser[user] >= l.Most {
		return false
	}
	if l.byUser == nil {
		l.byUser = map[string]int{}
	}
	l.byUser[user]++
	return true
}

// Leave undoes Take.
func (l *PerUser) Leave(user string) {
	if l.Most < 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byUser[user]--; l.byUser[user] == 0 {
		delete(l.byUser, user)
	}
}
