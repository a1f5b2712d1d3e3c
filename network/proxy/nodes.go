package proxy

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// nodeAddresses are the addresses at which node ports are served, and all addresses of the Nodes. Without ranges
// the former are each Node's first address of either family; with ranges, those of the Nodes and of devices in
// them. Packets to loopback addresses never leave their machine, so that there are no node ports at these.
func nodeAddresses(nodes []*corev1.Node, ranges []netip.Prefix, devices func() []netip.Addr) (ports, all []netip.Addr) {
	for _, n := range nodes {
		own := addressesOf(n)
		all = append(all, own...)
		for f := range families {
			if i := slices.IndexFunc(own, f.has); i >= 0 && len(ranges) == 0 {
				ports = append(ports, own[i])
			}
		}
	}
	if len(ranges) > 0 {
		for _, a := range append(devices(), all...) {
			if contained(ranges, a) && !a.IsLoopback() && !a.IsLinkLocalUnicast() {
				ports = append(ports, a)
			}
		}
	}
	return sortedAddresses(ports), sortedAddresses(all)
}

// addressesOf are a Node's addresses, those for use inside the cluster first.
func addressesOf(n *corev1.Node) []netip.Addr {
	var all []netip.Addr
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for _, a := range n.Status.Addresses {
			if ip, ok := parseAddress(a.Address); a.Type == kind && ok && !ip.IsLoopback() && !ip.IsUnspecified() {
				all = append(all, ip)
			}
		}
	}
	return all
}

func sortedAddresses(all []netip.Addr) []netip.Addr {
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}
