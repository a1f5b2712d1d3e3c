package proxy

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// nodeAddresses returns the addresses at which node ports are served, and all addresses of the Nodes. Without ranges,
// ports has each Node's first address of either family; with ranges, the addresses of the Nodes and of devices in them.
// Loopback addresses never have node ports, because packets to them do not leave their machine.
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

// addressesOf returns a Node's addresses, internal ones first.
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
