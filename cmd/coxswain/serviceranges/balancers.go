package serviceranges

import (
	"net/netip"
	"slices"
)

// balancers are the candidates for the network of load balancers' addresses if pods are programs: parts of 10.0.0.0/8
// without pods, and a part of 198.18.0.0/15 (RFC 2544). Few networks use them.
var balancers = []netip.Prefix{netip.MustParsePrefix("10.111.0.0/20"), netip.MustParsePrefix("10.95.0.0/20"),
	netip.MustParsePrefix("198.18.0.0/20")}

// Balancers returns the network of the load balancers' addresses in a cluster with the given ranges of Services, if its
// pods are programs.
func Balancers(ranges []netip.Prefix) netip.Prefix {
	i := slices.IndexFunc(balancers, func(p netip.Prefix) bool {
		return !slices.ContainsFunc(ranges, p.Overlaps)
	})
	return balancers[max(i, 0)]
}

// SimulatedBalancers is the network of load balancers' addresses in a cluster of simulated pods. It is on loopback,
// where the kernel refuses a connection at once.
var SimulatedBalancers = netip.MustParsePrefix("127.96.0.0/20")

// balancers6 is the same for clusters with a range of IPv6. It is a unique local prefix (RFC 4193) of the project.
const balancers6 = "fd63:6f78:7379::1-fd63:6f78:7379::ffff"

// Pool returns --service-lb-pool for a network of load balancers, without its first and last address.
func Pool(network netip.Prefix, ranges []netip.Prefix) []string {
	first, last := network.Addr().As4(), network.Addr().As4()
	first[3]++
	for bit := network.Bits(); bit < 31; bit++ {
		last[bit/8] |= 0x80 >> (bit % 8)
	}
	pool := []string{netip.AddrFrom4(first).String() + "-" + netip.AddrFrom4(last).String()}
	if slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Addr().Is6() }) {
		pool = append(pool, balancers6)
	}
	return pool
}
