package policy

import (
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// Cluster is all that decides about the traffic of a machine's pods.
type Cluster struct {
	Nodes         []string     // those of this machine, whose pods' traffic is decided about
	NodeAddresses []netip.Addr // the machine's own, which pods always reach and which always reach them
	Served        []netip.Addr // of servers in the pods' routing namespace: ordinary destinations
	Namespaces    []Namespace
	Pods          []Pod
	Policies      []*networkingv1.NetworkPolicy
}

// Namespace is a namespace as selectors see it.
type Namespace struct {
	Name   string
	Labels map[string]string
}

// Pod is a pod as policies see it. Pods of the host's network, and those that have finished, have none.
type Pod struct {
	types.NamespacedName
	UID       types.UID
	Labels    map[string]string
	Node      string
	Addresses []netip.Addr // none until the pod's network is there
	Ports     []NamedPort
	// Created decides between two pods of one address: it is the younger's, until that goes. Pods of this machine go
	// before others, whose Nodes may claim what they like.
	Created time.Time
}

// NamedPort is a port that a container of a pod gives a name.
type NamedPort struct {
	Name     string
	Protocol corev1.Protocol
	Port     uint16
}

// maxNamedPorts bounds the ports of a pod that policies can name; the others have no name.
const maxNamedPorts = 1024

// podOf reads a pod; ok is false where no policy has to do with it.
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
			pod.addPorts(c) // a sidecar
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

// addAddress adds one of the status's addresses. Kubernetes gives a pod one of each family.
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

// isolates reports for which directions a policy isolates the pods that it selects. Where it has no policyTypes, as the
// API server does not store it, Egress depends on its rules.
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

// protocolOf is the protocol of a port: TCP where it has none.
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

// rulesOf are a policy's for a direction.
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
