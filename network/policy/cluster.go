package policy

import (
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// Cluster is all state that the policies of a machine's pods depend on.
type Cluster struct {
	Nodes         []string     // the Nodes of this machine, with the protected pods
	NodeAddresses []netip.Addr // the machine's own, always allowed in both directions
	Served        []netip.Addr // servers in the pods' routing namespace: ordinary destinations
	Namespaces    []Namespace
	Pods          []Pod
	Policies      []*networkingv1.NetworkPolicy
}

// Namespace holds the fields of a Namespace that selectors use.
type Namespace struct {
	Name   string
	Labels map[string]string
}

// Pod holds the fields of a Pod that policies use. Pods of the host network and finished pods are left out.
type Pod struct {
	types.NamespacedName
	UID       types.UID
	Labels    map[string]string
	Node      string
	Addresses []netip.Addr // none until the pod's network exists
	Ports     []NamedPort
	// Created resolves conflicts between pods with the same address: the younger pod owns it until it is deleted. Pods
	// of this machine come before others, since other Nodes may report any address.
	Created time.Time
}

// NamedPort is a named port of a pod's container.
type NamedPort struct {
	Name     string
	Protocol corev1.Protocol
	Port     uint16
}

// maxNamedPorts limits the named ports of a pod that policies can refer to. Further names are ignored.
const maxNamedPorts = 1024

// podOf converts a pod. ok is false if no policy applies to it.
func podOf(p *corev1.Pod) (pod Pod, ok bool) {
	if p.Spec.HostNetwork || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return pod, false
	}
	pod = Pod{
		NamespacedName: types.NamespacedName{Namespace: p.Namespace, Name: p.Name}, UID: p.UID,
		Labels: p.Labels, Node: p.Spec.NodeName, Created: p.CreationTimestamp.Time,
	}
	for _, ip := range p.Status.PodIPs {
		pod.addAddress(ip.IP)
	}
	if len(p.Status.PodIPs) == 0 {
		pod.addAddress(p.Status.PodIP)
	}
	for i := range p.Spec.Containers {
		pod.addPorts(&p.Spec.Containers[i])
	}
	for i := range p.Spec.InitContainers {
		if c := &p.Spec.InitContainers[i]; ptr.Deref(c.RestartPolicy, "") == corev1.ContainerRestartPolicyAlways {
			pod.addPorts(c) // of a sidecar
		}
	}
	return pod, true
}

// addPorts adds the named ports of a container.
func (p *Pod) addPorts(c *corev1.Container) {
	for _, port := range c.Ports {
		if port.Name != "" && port.ContainerPort > 0 && port.ContainerPort < 1<<16 && len(p.Ports) < maxNamedPorts {
			p.Ports = append(p.Ports, NamedPort{port.Name, protocolOf(&port.Protocol), uint16(port.ContainerPort)})
		}
	}
}

// addAddress adds an address of the status. Kubernetes assigns one of each family; further ones are ignored.
func (p *Pod) addAddress(text string) {
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" {
		return
	}
	a = a.Unmap()
	for _, other := range p.Addresses {
		if other.BitLen() == a.BitLen() {
			return
		}
	}
	p.Addresses = append(p.Addresses, a)
}

// isolates returns the directions in which a policy isolates the pods that it selects. If policyTypes is empty, which
// the API server never stores, Egress depends on the rules.
func isolates(s *networkingv1.NetworkPolicySpec) (ingress, egress bool) {
	if len(s.PolicyTypes) == 0 {
		return true, len(s.Egress) > 0
	}
	for _, t := range s.PolicyTypes {
		ingress = ingress || t == networkingv1.PolicyTypeIngress
		egress = egress || t == networkingv1.PolicyTypeEgress
	}
	return ingress, egress
}

// protocolOf returns the protocol of a port, by default TCP.
func protocolOf(p *corev1.Protocol) corev1.Protocol {
	if p == nil || *p == "" {
		return corev1.ProtocolTCP
	}
	return *p
}

// rule is a rule of either direction.
type rule struct {
	ports []networkingv1.NetworkPolicyPort
	peers []networkingv1.NetworkPolicyPeer
}

// rulesOf returns the rules of a policy for a direction.
func rulesOf(s *networkingv1.NetworkPolicySpec, d Direction) (rules []rule) {
	if d == Ingress {
		for _, r := range s.Ingress {
			rules = append(rules, rule{r.Ports, r.From})
		}
		return rules
	}
	for _, r := range s.Egress {
		rules = append(rules, rule{r.Ports, r.To})
	}
	return rules
}
