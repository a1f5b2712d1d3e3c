package dns

import (
	"net/netip"
	"sync"
)

// share limits how many units of something are in use at one time, in total and per client. It is safe for concurrent
// use.
type share struct {
	total, each int

	mu   sync.Mutex
	used int
	by   map[netip.Prefix]int
}

func newShare(total, each int) *share {
	return &share{total: total, each: max(1, each), by: map[netip.Prefix]int{}}
}

// shareOf returns the unit that clients are counted by: an IPv4 address, or an IPv6 /64, which one customer has alone.
func shareOf(address netip.Addr) netip.Prefix {
	bits := address.BitLen()
	if address.Is6() && !address.Is4In6() {
		bits = 64
	}
	client, _ := address.WithZone("").Prefix(bits) // the zero Prefix for an invalid address, which counts as one client
	return client
}

// take takes a unit for the client at an address. It returns false if there is none. The client returns the unit with
// give.
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
