package dns

import (
	"net/netip"
	"sync"
)

// share bounds how much of something is in use at one time, by all clients and by each. It is safe for concurrent use.
type share struct {
	total, each int

	mu   sync.Mutex
	used int
	by   map[netip.Addr]int
}

func newShare(total, each int) *share {
	return &share{total: total, each: max(1, each), by: map[netip.Addr]int{}}
}

// take takes one for a client, and reports whether there was one. The client gives it back with give.
func (s *share) take(client netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used >= s.total || s.by[client] >= s.each {
		return false
	}
	s.used++
	s.by[client]++
	return true
}

func (s *share) give(client netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used--
	if s.by[client]--; s.by[client] == 0 {
		delete(s.by, client)
	}
}
