package policy

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Flow is a new connection with addresses and port as the pods see them: behind a Service, the endpoint's.
type Flow struct {
	Source, Destination netip.Addr
	Protocol            corev1.Protocol // "" for protocols without ports, such as ICMP
	Port                uint16
	// ToServer is set if the destination is an address of the namespace itself, so that packets are not forwarded.
	ToServer bool
}

// Allowed evaluates a flow literally as the API's documentation describes it, policy by policy and without any index.
// It is the reference for tests of compiled rules, and answers questions about single flows.
func Allowed(c *Cluster, f Flow) bool {
	if f.ToServer {
		return !contains(c.Served, f.Destination) || c.permits(Egress, f)
	}
	return f.Source == f.Destination || c.permits(Egress, f) && c.permits(Ingress, f)
}

// permits reports whether the policies of one direction allow a flow.
func (c *Cluster) permits(d Direction, f Flow) bool {
	subject, peer := c.podAt(f.Destination), f.Source
	if d == Egress {
		subject, peer = c.podAt(f.Source), f.Destination
	}
	if subject == nil || !contains(c.Nodes, subject.Node) || contains(c.NodeAddresses, peer) && !f.ToServer {
		return true
	}
	isolated := false
	for _, p := range c.Policies {
		applies := [2]bool{}
		applies[Ingress], applies[Egress] = isolates(&p.Spec)
		if !applies[d] || p.Namespace != subject.Namespace || !selects(&p.Spec.PodSelector, subject.Labels) {
			continue
		}
		isolated = true
		for _, r := range rulesOf(&p.Spec, d) {
			if c.peerMatches(p.Namespace, r.peers, peer) && c.portMatches(r.ports, f) {
				return true
			}
		}
	}
	return !isolated
}

func contains[T comparable](all []T, one T) bool {
	for _, a := range all {
		if a == one {
			return true
		}
	}
	return false
}

// podAt returns the pod that owns an address: the youngest pod with it on this machine, else the youngest on any.
func (c *Cluster) podAt(a netip.Addr) (owner *Pod) {
	local := map[string]bool{}
	for _, n := range c.Nodes {
		local[n] = true
	}
	for i := range c.Pods {
		if p := &c.Pods[i]; contains(p.Addresses, a) && (owner == nil || p.precedes(owner, local)) {
			owner = p
		}
	}
	return owner
}

// precedes reports whether a pod comes before another one with the same address.
func (p *Pod) precedes(other *Pod, local map[string]bool) bool {
	switch {
	case local[p.Node] != local[other.Node]:
		return local[p.Node]
	case p.Created.Equal(other.Created):
		return p.String() > other.String()
	}
	return p.Created.After(other.Created)
}

func selects(s *metav1.LabelSelector, set map[string]string) bool {
	selector, err := metav1.LabelSelectorAsSelector(s)
	return err == nil && selector.Matches(labels.Set(set))
}

func (c *Cluster) peerMatches(namespace string, peers []networkingv1.NetworkPolicyPeer, a netip.Addr) bool {
	if len(peers) == 0 {
		return true
	}
	pod := c.podAt(a)
	for _, peer := range peers {
		switch {
		case peer.IPBlock != nil:
			for _, b := range blocksOf(peer.IPBlock) {
				if b.first.BitLen() == a.BitLen() && !a.Less(b.first) && !b.last.Less(a) {
					return true
				}
			}
		case pod == nil || peer.PodSelector == nil && peer.NamespaceSelector == nil:
		case peer.NamespaceSelector == nil && pod.Namespace != namespace:
		case peer.NamespaceSelector != nil && !c.inNamespace(peer.NamespaceSelector, pod.Namespace):
		case peer.PodSelector == nil || selects(peer.PodSelector, pod.Labels):
			return true
		}
	}
	return false
}

func (c *Cluster) inNamespace(s *metav1.LabelSelector, name string) bool {
	for _, n := range c.Namespaces {
		if n.Name == name {
			return selects(s, n.Labels)
		}
	}
	return false
}

func (c *Cluster) portMatches(ports []networkingv1.NetworkPolicyPort, f Flow) bool {
	if len(ports) == 0 {
		return true
	}
	for _, p := range ports {
		if f.Protocol != protocolOf(p.Protocol) {
			continue
		}
		if p.Port != nil && p.Port.Type == intstr.String {
			if pod := c.podAt(f.Destination); pod != nil &&
				contains(pod.Ports, NamedPort{p.Port.StrVal, f.Protocol, f.Port}) {
				return true
			}
			continue
		}
		if r, ok := rangeOf(&p); ok && r.First <= f.Port && f.Port <= r.Last {
			return true
		}
	}
	return false
}

// rangeOf converts the numbers of a port. ok is false if no packet can have them.
func rangeOf(p *networkingv1.NetworkPolicyPort) (r PortRange, ok bool) {
	if p.Port == nil {
		return allPorts, p.EndPort == nil
	}
	first, last := p.Port.IntVal, p.Port.IntVal
	if p.EndPort != nil {
		last = *p.EndPort
	}
	if first < 1 || last < first || last > 65535 {
		return r, false
	}
	return PortRange{uint16(first), uint16(last)}, true
}
