package routing

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/network/router"
)

// claims maps subnets to the Nodes that own them. A Node registers itself and could claim another's subnet, so the
// first owner counts.
type claims []claim

type claim struct {
	subnet netip.Prefix
	owner  string
}

// take claims subnets for an owner, and returns the ones that do not overlap with other claims.
func (c *claims) take(owner string, subnets []netip.Prefix) (taken []netip.Prefix, problems []string) {
	for _, s := range subnets {
		i := slices.IndexFunc(*c, func(other claim) bool { return other.subnet.Overlaps(s) })
		if i >= 0 {
			problems = append(problems, fmt.Sprintf("pod CIDR %s of %s overlaps with %s of %s", s, owner,
				(*c)[i].subnet, (*c)[i].owner))
			continue
		}
		*c = append(*c, claim{s, owner})
		taken = append(taken, s)
	}
	return taken, problems
}

// peersOf returns the other machines of the cluster: all Nodes except our own that have an address of this machine's IP
// family. services are the cluster IPs, which no Node may claim. If two Nodes claim a subnet, the older one owns it.
func peersOf(nodes []*corev1.Node, own []string, local netip.Addr, services []netip.Prefix) (all []router.Peer,
	problems []string) {
	var owned claims
	owned.take("the Services of the cluster", services)
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
		subnets, refused := owned.take("node "+n.Name, PodCIDRs(n))
		problems = append(problems, refused...)
		if address := internalIP(n, local); rank(n) > 0 && address.IsValid() && len(subnets) > 0 {
			all = append(all, router.Peer{Address: address, Subnets: subnets})
		}
	}
	return all, problems
}

// PodCIDRs returns the valid pod subnets of a Node.
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

// internalIP returns the address of a Node in the IP family of another address, or the zero Addr. It ignores the
// machine's own address, which another Node on this machine has: that Node is reached on the machine. It also ignores
// addresses in the Node's own subnets, which only the routes to that Node would lead to.
func internalIP(n *corev1.Node, like netip.Addr) netip.Addr {
	for _, a := range n.Status.Addresses {
		ip, err := netip.ParseAddr(a.Address)
		if err == nil && a.Type == corev1.NodeInternalIP && ip.Is4() == like.Is4() && ip != like &&
			!ip.IsLoopback() && !ip.IsUnspecified() && !ip.IsMulticast() &&
			!slices.ContainsFunc(PodCIDRs(n), func(s netip.Prefix) bool { return s.Contains(ip) }) {
			return ip
		}
	}
	return netip.Addr{}
}
