package nodeipam

import (
	"net/netip"
)

// subnets divides a cluster CIDR into at most 65,536 subnets of equal size.
type subnets struct {
	cluster netip.Prefix
	bits    int
	// start is the number of the first subnet in the next search, so that a freed subnet stays unused as long as
	// possible.
	start int
}

// count returns the number of subnets.
func (s *subnets) count() int { return 1 << (s.bits - s.cluster.Bits()) }

// nth returns the subnet with this number.
func (s *subnets) nth(n int) netip.Prefix {
	bytes := s.cluster.Addr().AsSlice()
	for bit := s.bits - 1; n > 0; bit, n = bit-1, n>>1 {
		if n&1 == 1 {
			bytes[bit/8] |= 0x80 >> (bit % 8)
		}
	}
	a, _ := netip.AddrFromSlice(bytes) // the length is valid: it came from an address
	return netip.PrefixFrom(a, s.bits)
}

// number returns the number of the subnet that contains an address of the cluster CIDR.
func (s *subnets) number(a netip.Addr) int {
	n, bytes := 0, a.AsSlice()
	for bit := s.cluster.Bits(); bit < s.bits; bit++ {
		n = n<<1 | int(bytes[bit/8]>>(7-bit%8)&1)
	}
	return n
}

// next returns the next subnet that overlaps with no used prefix, and how many subnets before it were taken; false if
// there is none.
func (s *subnets) next(used []netip.Prefix) (subnet netip.Prefix, tries int, ok bool) {
	taken := make([]bool, s.count())
	for _, p := range used {
		if !p.Overlaps(s.cluster) {
			continue
		}
		if p.Bits() <= s.cluster.Bits() {
			return netip.Prefix{}, 0, false
		}
		first := s.number(p.Addr())
		for i := range 1 << max(0, s.bits-p.Bits()) {
			taken[first+i] = true
		}
	}
	for i := range taken {
		n := (s.start + i) % len(taken)
		if !taken[n] {
			s.start = (n + 1) % len(taken)
			return s.nth(n), i, true
		}
	}
	return netip.Prefix{}, len(taken), false
}
