package runtime

import "net/netip"

// HostAddress returns the host IP of the pods of a Node, which pods with hostNetwork have as well. address is the
// Node's first InternalIP. EndpointSlices refuse loopback addresses, so in place of such an address the Node has the
// machine's address in the network of its pods: the second address of the Node's subnet. ok is false if the subnet is
// needed and not known yet.
func HostAddress(address string, subnet netip.Prefix) (host string, ok bool) {
	if a, err := netip.ParseAddr(address); err != nil || !a.IsLoopback() {
		return address, true
	}
	if !subnet.IsValid() {
		return address, false
	}
	return subnet.Masked().Addr().Next().String(), true
}
