package nodeipam

import (
	"net/netip"
)

// subnets are the equal parts of a cluster CIDR, at most 65,536.
type subnets struct {
	cluster netip.Prefix
	bits    int
	// at is where the next search begins, so that a freed subnet stays unused for as long as possible.
	at int
}

func (s *subnets) count() int { return 1 << (s.bits - s.cluster.Bits()) }

// nth is the subnet of a number.
func (s *subnets) nth(n int) netip.Prefix {
	bytes := s.cluster.Addr().AsSlice()
	for bit := s.bits - 1; n > 0; bit, n = bit-1, n>>1 {
		if n&1 == 1 {
			bytes[bit/8] |= 0x80 >> (bit % 8)
		}
	}
	a, _ := netip.AddrFromSlice(bytes) // of the length that it had
	return netip.PrefixFrom(a, s.bits)
}

// number is that of the subnet in which an address of the cluster is.
func (s *subnets) number(a netip.Addr) int {
	n, bytes := 0, a.AsSlice()
	for bit := s.cluster.Bits(); bit < s.bits; bit++ {
		n = n<<1 | int(bytes[bit/8]>>(7-bit%8)&1)
	}
	return n
}

// next is the next subnet that overlaps with none of the used; false where there is none.
func (s *subnets) next(used []netip.Prefix) (netip.Prefix, bool) {
	taken := make([]bool, s.count())
	for _, p := range used {
		if !p.Overlaps(s.cluster) {
			continue
		}
		if p.Bits() <= s.cluster.Bits() {
			return netip.Prefix{}, false
		}
		first := s.number(p.Addr())
		for i := range 1 << max(0, s.bits-p.Bits()) {
			taken[first+i] = true
		}
	}
	for i := range taken {
		n := (s.at + i) % len(taken)
		if !taken[n] {
			s.at = (n + 1) % len(taken)
			return s.nth(n), true
		}
	}
	return netip.Prefix{}, false
}
