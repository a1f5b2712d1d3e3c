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
	by   map[netip.Prefix]int
}

func newShare(total, each int) *share {
	return &share{total: total, each: max(1, each), by: map[netip.Prefix]int{}}
}

// shareOf is the unit that clients are counted by: an IPv4 address, or an IPv6 /64, which is one customer's.
func shareOf(address netip.Addr) netip.Prefix {
	bits := address.BitLen()
	if address.Is6() && !address.Is4In6() {
		bits = 64
	}
	client, _ := address.WithZone("").Prefix(bits) // of no address it is no prefix, which counts as a client, too
	return client
}

// take takes one for the client at an address, and reports whether there was one. The client gives it back with give.
func (s *share) take(address netip.Addr) bool {
	client := shareOf(address)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used >= s.total || s.by[client] >= s.each {
		return false
	}
	s.used++
	s.by[client]++
	return true
}

func (s *share) give(address netip.Addr) {
	client := shareOf(address)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used--
	if s.by[client]--; s.by[client] == 0 {
		delete(s.by, client)
	}
}
