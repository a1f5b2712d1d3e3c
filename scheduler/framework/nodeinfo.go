package framework

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// NodeInfo is a node with the pods that are bound to it or assumed to be, and their sums.
// It has no lock: the scheduler changes it between cycles only.
type NodeInfo struct {
	// Node is nil while pods name a node that is not, or no longer, there.
	Node *corev1.Node
	// Allocatable is what the node has for pods.
	Allocatable Resource
	// Pods are in no particular order.
	Pods []*PodInfo
	// Requested is the sum of the pods' Requests; Scored that of their Scored.
	Requested, Scored Resource
	// UsedPorts are the host ports that are taken and by how many pods: pods that were bound past the
	// scheduler may share one. Nil when none.
	UsedPorts map[HostPort]int
}

// NewNodeInfo makes a NodeInfo without pods. Node may be nil.
func NewNodeInfo(node *corev1.Node) *NodeInfo {
	n := &NodeInfo{}
	n.SetNode(node)
	return n
}

// SetNode replaces the Node and keeps the pods.
func (n *NodeInfo) SetNode(node *corev1.Node) {
	n.Node = node
	n.Allocatable = Resource{}
	if node != nil {
		n.Allocatable = NewResource(node.Status.Allocatable)
	}
}

// AddPod counts a pod.
func (n *NodeInfo) AddPod(p *PodInfo) {
	n.Pods = append(n.Pods, p)
	n.Requested.Add(p.Requests, 1)
	n.Scored.Add(p.Scored, 1)
	for _, port := range p.HostPorts {
		if n.UsedPorts == nil {
			n.UsedPorts = make(map[HostPort]int)
		}
		n.UsedPorts[port]++
	}
}

// RemovePod takes the pod of that UID out of the count and reports whether it was there.
func (n *NodeInfo) RemovePod(uid types.UID) bool {
	i := slices.IndexFunc(n.Pods, func(p *PodInfo) bool { return p.Pod.UID == uid })
	if i < 0 {
		return false
	}
	p := n.Pods[i]
	last := len(n.Pods) - 1
	n.Pods[i], n.Pods[last] = n.Pods[last], nil
	n.Pods = n.Pods[:last]
	n.Requested.Add(p.Requests, -1)
	n.Scored.Add(p.Scored, -1)
	for _, port := range p.HostPorts {
		if n.UsedPorts[port]--; n.UsedPorts[port] == 0 {
			delete(n.UsedPorts, port)
		}
	}
	return true
}

// PortsFree reports whether all of ports can be taken.
func (n *NodeInfo) PortsFree(ports []HostPort) bool {
	for _, want := range ports {
		for used := range n.UsedPorts {
			if want.Conflicts(used) {
				return false
			}
		}
	}
	return true
}

// Clone copies the node so that pods can be added and removed for a what-if.
func (n *NodeInfo) Clone() *NodeInfo {
	c := NewNodeInfo(n.Node)
	for _, p := range n.Pods {
		c.AddPod(p)
	}
	return c
}
