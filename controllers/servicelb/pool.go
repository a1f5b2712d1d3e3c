package servicelb

import (
	"fmt"
	"net/netip"
	"strings"
)

// Pool is a list of ranges of addresses.
type Pool []Range

// Range is from its first to its last address, both of one family.
type Range struct{ First, Last netip.Addr }

// ParsePool reads CIDRs ("192.0.2.0/28") and ranges ("192.0.2.10-192.0.2.20"). Every address of a CIDR is given
// out, its first and its last too: what they lead to is one host, not a network.
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
		return Range{prefix.Masked().Addr(), last(prefix)}, nil
	}
	from, to, ok := strings.Cut(text, "-")
	first, err1 := netip.ParseAddr(strings.TrimSpace(from))
	end, err2 := netip.ParseAddr(strings.TrimSpace(to))
	if !ok || err1 != nil || err2 != nil || first.Is6() != end.Is6() || end.Less(first) {
		return Range{}, fmt.Errorf("%q is neither a CIDR nor a range FIRST-LAST of addresses", text)
	}
	return Range{first, end}, nil
}

func last(p netip.Prefix) netip.Addr {
	bytes := p.Masked().Addr().AsSlice()
	for bit := p.Bits(); bit < 8*len(bytes); bit++ {
		bytes[bit/8] |= 0x80 >> (bit % 8)
	}
	a, _ := netip.AddrFromSlice(bytes) // of the length that it had
	return a
}

// Contains reports whether an address is the pool's.
func (p Pool) Contains(a netip.Addr) bool {
	for _, r := range p {
		if a.Is6() == r.First.Is6() && !a.Less(r.First) && !r.Last.Less(a) {
			return true
		}
	}
	return false
}

// First is the lowest address of a family that is not used; false where there is none.
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
