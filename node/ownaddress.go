package node

import (
	"net"
	"net/http"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/node/runtime"
)

// With Options.OwnAddresses the endpoint serves each Node at a loopback address of its own, so that collectors of
// metrics, which know a Node by its address and port, find each of them. One listener serves all of these addresses.

// ownAddress returns the loopback address of a Node with a subnet: 127.244.4.1 for 10.244.4.0/22. No two Nodes have the
// same, since their subnets begin with the same number. ok is false if the subnet is unknown or IPv6.
func ownAddress(subnet netip.Prefix) (address netip.Addr, ok bool) {
	if !subnet.IsValid() || !subnet.Addr().Is4() {
		return address, false
	}
	b := subnet.Masked().Addr().Next().As4()
	b[0] = 127
	return netip.AddrFrom4(b), true
}

// addressesOf returns the addresses of a Node with a subnet: the one that its agent answers at, and the host IP of its
// pods if that is another one.
func (a *agent) addressesOf(name string, subnet netip.Prefix) []corev1.NodeAddress {
	first := a.Address
	if own, ok := ownAddress(subnet); ok && a.OwnAddresses {
		first = own.String()
	}
	all := []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: first}}
	if host, ok := runtime.HostAddress(a.Address, subnet); ok && host != first {
		all = append(all, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: host})
	}
	return append(all, corev1.NodeAddress{Type: corev1.NodeHostName, Address: name})
}

// setSubnet sets the range of a node's addresses, if it has none.
func (a *agent) setSubnet(n *hostedNode, cidr string) {
	n.setCIDR(cidr)
	if own, ok := ownAddress(n.subnet()); ok && a.OwnAddresses {
		a.byAddress.Store(own, n.name)
	}
}

// namedNode returns the name of the node that a request is about: the one that it names, or else the one at the address
// that it was sent to; "" if there is neither.
func (a *agent) namedNode(r *http.Request) string {
	if name := r.Header.Get(NodeHeader); name != "" {
		return name
	}
	if name := r.URL.Query().Get("node"); name != "" {
		return name
	}
	to, _ := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if to == nil {
		return ""
	}
	name, _ := a.byAddress.Load(to.AddrPort().Addr().Unmap())
	text, _ := name.(string)
	return text
}
