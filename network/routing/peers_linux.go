package routing

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/network/router"
)

// claims are subnets with whose they are. A Node registers itself and could claim what is another's: a subnet is the
// one's that had it first.
type claims []claim

type claim struct {
	subnet netip.Prefix
	of     string
}

// take claims subnets for a Node, and returns those that nobody else has.
func (c *claims) take(of string, subnets []netip.Prefix) (taken []netip.Prefix, problems []string) {
	for _, s := range subnets {
		i := slices.IndexFunc(*c, func(other claim) bool { return other.subnet.Overlaps(s) })
		if i >= 0 {
			problems = append(problems, fmt.Sprintf("pod CIDR %s of %s overlaps with %s of %s", s, of, (*c)[i].subnet,
				(*c)[i].of))
			continue
		}
		*c = append(*c, claim{s, of})
		taken = append(taken, s)
	}
	return taken, problems
}

// peersOf are the other machines of the cluster: all Nodes but our own with an address of the IP family of this
// machine's. Services are the cluster IPs, which are no Node's. The older of two Nodes has what both claim.
func peersOf(nodes []*corev1.Node, own []string, local netip.Addr, services []netip.Prefix) (all []router.Peer,
	problems []string) {
	var known claims
	known.take("the Services of the cluster", services)
	nodes = slices.Clone(nodes)
	rank := func(n *corev1.Node) int { // our own come first: their subnets are in use here
		if slices.Contains(own, n.Name) {
			return 0
		}
		return 1
	}
	slices.SortFunc(nodes, func(a, b *corev1.Node) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			cmp.Compare(a.Name, b.Name))
	})
	for _, n := range nodes {
		subnets, refused := known.take("node "+n.Name, PodCIDRs(n))
		problems = append(problems, refused...)
		if address := internalIP(n, local); rank(n) > 0 && address.IsValid() && len(subnets) > 0 {
			all = append(all, router.Peer{Address: address, Subnets: subnets})
		}
	}
	return all, problems
}

// PodCIDRs are those of a Node that are subnets, without what is no subnet.
func PodCIDRs(n *corev1.Node) (subnets []netip.Prefix) {
	texts := n.Spec.PodCIDRs
	if len(texts) == 0 && n.Spec.PodCIDR != "" {
		texts = []string{n.Spec.PodCIDR}
	}
	for _, text := range texts {
		if p, err := netip.ParsePrefix(text); err == nil && p.Bits() > 0 {
			subnets = append(subnets, p.Masked())
		}
	}
	return subnets
}

// internalIP is the address of a Node of the IP family of another; the zero Addr where it has none. The machine's own
// is that of a Node on it with another agent, which is reached on the machine.
func internalIP(n *corev1.Node, like netip.Addr) netip.Addr {
	for _, a := range n.Status.Addresses {
		ip, err := netip.ParseAddr(a.Address)
		if err == nil && a.Type == corev1.NodeInternalIP && ip.Is4() == like.Is4() && ip != like &&
			!ip.IsLoopback() && !ip.IsUnspecified() && !ip.IsMulticast() {
			return ip
		}
	}
	return netip.Addr{}
}
