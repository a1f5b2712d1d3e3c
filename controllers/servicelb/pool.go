package servicelb

import (
	"fmt"
	"net/netip"
	"strings"
)

// Pool is a list of address ranges that do not overlap.
type Pool []Range

// Range includes its first and its last address, which are of one family.
type Range struct{ First, Last netip.Addr }

// ParsePool parses CIDRs ("192.0.2.0/28") and ranges ("192.0.2.10-192.0.2.20"). Every address of a CIDR can be
// assigned, including the first and the last: each is the address of a single host, so none is a network or broadcast
// address.
func ParsePool(list []string) (Pool, error) {
	var pool Pool
	for _, text := range list {
		text = strings.TrimSpace(text)
		if text == "" {
			continue
		}
		r, err := parseRange(text)
		if err != nil {
			return nil, err
		}
		for _, other := range pool {
			if !r.Last.Less(other.First) && !other.Last.Less(r.First) && r.First.Is6() == other.First.Is6() {
				return nil, fmt.Errorf("%q overlaps with %s-%s", text, other.First, other.Last)
			}
		}
		pool = append(pool, r)
	}
	return pool, nil
}

func parseRange(text string) (Range, error) {
	if prefix, err := netip.ParsePrefix(text); err == nil {
		return Range{prefix.Masked().Addr(), lastAddress(prefix)}, nil
	}
	start, end, ok := strings.Cut(text, "-")
	first, err1 := netip.ParseAddr(strings.TrimSpace(start))
	last, err2 := netip.ParseAddr(strings.TrimSpace(end))
	if !ok || err1 != nil || err2 != nil || first.Is6() != last.Is6() || last.Less(first) {
		return Range{}, fmt.Errorf("%q is neither a CIDR nor a range FIRST-LAST of addresses", text)
	}
	return Range{first, last}, nil
}

// lastAddress returns the last address of a prefix.
func lastAddress(p netip.Prefix) netip.Addr {
	bytes := p.Masked().Addr().AsSlice()
	for bit := p.Bits(); bit < 8*len(bytes); bit++ {
		bytes[bit/8] |= 0x80 >> (bit % 8)
	}
	a, _ := netip.AddrFromSlice(bytes) // the length is valid: it came from an address
	return a
}

// Contains reports whether an address is in the pool.
func (p Pool) Contains(a netip.Addr) bool {
	for _, r := range p {
		if a.Is6() == r.First.Is6() && !a.Less(r.First) && !r.Last.Less(a) {
			return true
		}
	}
	return false
}

// First returns the first unused address of a family, in the order of the ranges; false if there is none.
func (p Pool) First(v6 bool, used map[netip.Addr]bool) (netip.Addr, bool) {
	for _, r := range p {
		if r.First.Is6() != v6 {
			continue
		}
		for a := r.First; a.IsValid() && !r.Last.Less(a); a = a.Next() {
			if !used[a] {
				return a, true
			}
		}
	}
	return netip.Addr{}, false
}
