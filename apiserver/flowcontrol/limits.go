package flowcontrol

import "sync"

// InFlight limits how many requests are served at once where API Priority and Fairness is off. Writes and reads have
// limits of their own, so that neither can starve the other. It is safe for concurrent use.
type InFlight struct{ reads, writes semaphore }

// semaphore holds an element for each request that is being served. nil is no limit.
type semaphore chan struct{}

func newSemaphore(n int) semaphore {
	if n < 0 {
		return nil
	}
	return make(semaphore, n)
}

// NewInFlight returns a limit for requests that read, and one for requests that write. A negative number is no limit.
func NewInFlight(reads, writes int) *InFlight {
	return &InFlight{reads: newSemaphore(reads), writes: newSemaphore(writes)}
}

func (l *InFlight) of(reads bool) semaphore {
	if reads {
		return l.reads
	}
	return l.writes
}

// Take counts a request. It returns false if the limit is reached. After true, the caller must call Leave.
func (l *InFlight) Take(reads bool) bool {
	limit := l.of(reads)
	if limit == nil {
		return true
	}
	select {
	case limit <- struct{}{}:
		return true
	default:
		return false
	}
}

// Leave undoes Take.
func (l *InFlight) Leave(reads bool) {
	if limit := l.of(reads); limit != nil {
		<-limit
	}
}

// PerUser limits how many long-running requests each user has. It is safe for concurrent use.
type PerUser struct {
	// Max is the number of requests that one user may have; a negative number is no limit. It is set before first use.
	Max int

	mu     sync.Mutex
	byUser map[string]int // guarded by mu; no zeros, so that it does not grow with the users
}

// Take counts a request of a user. It returns false if the user has Max requests already. After true, the caller must
// call Leave.
func (l *PerUser) Take(user string) bool {
	if l.Max < 0 {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byUser[user] >= l.Max {
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
	if l.Max < 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byUser[user]--; l.byUser[user] == 0 {
		delete(l.byUser, user)
	}
}
