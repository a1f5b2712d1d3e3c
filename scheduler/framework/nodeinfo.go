package framework

import (
	"maps"
	"slices"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// NodeInfo is a node with the pods that are bound to it or assumed to be, and their sums. It has no lock of its
// own: the cache locks its entries, and copies them into the snapshot that plugins see.
type NodeInfo struct {
	// Node is nil if pods name a node that does not exist, or no longer exists.
	Node *corev1.Node
	// Allocatable is the node's capacity for pods.
	Allocatable Resource
	// Images maps each name of the node's images to the image's size. It must not be changed.
	Images map[string]int64
	// Pods are in no particular order.
	Pods []*PodInfo
	// Version differs after every change of Pods: if two versions of one node, or of copies of it, are
	// equal, so are their Pods.
	Version uint64
	// PodsWithAffinity are the elements of Pods with inter-pod (anti-)affinity, and PodsWithRequiredAntiAffinity
	// the elements with required anti-affinity.
	PodsWithAffinity, PodsWithRequiredAntiAffinity []*PodInfo
	// Requested is the sum of the pods' Requests, and Scored the sum of their Scored.
	Requested, Scored Resource
	// UsedPorts counts the pods that use each host port: pods that were bound without the scheduler may share one.
	// An entry without an IP counts the port on any address. Nil if no port is used.
	UsedPorts map[HostPort]int
	// Claims counts the pods that use each PersistentVolumeClaim ("namespace/name"). Nil if no claim is used.
	Claims map[string]int
}

// NewNodeInfo makes a NodeInfo with pods. Node may be nil.
func NewNodeInfo(node *corev1.Node, pods ...*PodInfo) *NodeInfo {
	n := &NodeInfo{}
	n.SetNode(node)
	for _, p := range pods {
		n.AddPod(p)
	}
	return n
}

// SetNode replaces the Node and keeps the pods.
func (n *NodeInfo) SetNode(node *corev1.Node) {
	n.Node, n.Allocatable, n.Images = node, Resource{}, nil
	if node == nil {
		return
	}
	n.Allocatable = NewResource(node.Status.Allocatable)
	for _, image := range node.Status.Images {
		for _, name := range image.Names {
			if n.Images == nil {
				n.Images = make(map[string]int64)
			}
			n.Images[name] = image.SizeBytes
		}
	}
}

var lastVersion atomic.Uint64

// AddPod counts a pod.
func (n *NodeInfo) AddPod(p *PodInfo) {
	n.Version = lastVersion.Add(1)
	n.Pods = append(n.Pods, p)
	if p.HasAffinity() {
		n.PodsWithAffinity = append(n.PodsWithAffinity, p)
	}
	if len(p.RequiredAntiAffinity) > 0 {
		n.PodsWithRequiredAntiAffinity = append(n.PodsWithRequiredAntiAffinity, p)
	}
	n.Requested.Add(p.Requests, 1)
	n.Scored.Add(p.Scored, 1)
	for _, port := range p.HostPorts {
		n.UsedPorts = count(count(n.UsedPorts, port, 1), port.somewhere(), 1)
	}
	for _, claim := range p.Claims {
		n.Claims = count(n.Claims, claim, 1)
	}
}

// RemovePod removes the pod with a UID and reports whether the node had it.
func (n *NodeInfo) RemovePod(uid types.UID) bool {
	var p *PodInfo
	if n.Pods, p = without(n.Pods, uid); p == nil {
		return false
	}
	n.Version = lastVersion.Add(1)
	if p.HasAffinity() {
		n.PodsWithAffinity, _ = without(n.PodsWithAffinity, uid)
	}
	if len(p.RequiredAntiAffinity) > 0 {
		n.PodsWithRequiredAntiAffinity, _ = without(n.PodsWithRequiredAntiAffinity, uid)
	}
	n.Requested.Add(p.Requests, -1)
	n.Scored.Add(p.Scored, -1)
	for _, port := range p.HostPorts {
		count(count(n.UsedPorts, port, -1), port.somewhere(), -1)
	}
	for _, claim := range p.Claims {
		count(n.Claims, claim, -1)
	}
	return true
}

// without removes the pod with a UID from the list. The last pod takes its place.
func without(pods []*PodInfo, uid types.UID) ([]*PodInfo, *PodInfo) {
	i := slices.IndexFunc(pods, func(p *PodInfo) bool { return p.Pod.UID == uid })
	if i < 0 {
		return pods, nil
	}
	p, last := pods[i], len(pods)-1
	pods[i], pods[last] = pods[last], nil
	return pods[:last], p
}

func count[K comparable](m map[K]int, key K, sign int) map[K]int {
	if m == nil {
		m = make(map[K]int)
	}
	if m[key] += sign; m[key] == 0 {
		delete(m, key)
	}
	return m
}

// PortsFree reports whether all ports are free.
func (n *NodeInfo) PortsFree(ports []HostPort) bool {
	return !slices.ContainsFunc(ports, func(want HostPort) bool {
		if want.IP == anyIP {
			return n.UsedPorts[want.somewhere()] > 0
		}
		return n.UsedPorts[want] > 0 || n.UsedPorts[HostPort{anyIP, want.Protocol, want.Port}] > 0
	})
}

// Clone copies the node so that pods can be added and removed in a simulation.
func (n *NodeInfo) Clone() *NodeInfo {
	c := &NodeInfo{}
	c.CopyFrom(n)
	return c
}

// CopyFrom makes n a copy of o, reusing n's memory.
func (n *NodeInfo) CopyFrom(o *NodeInfo) {
	n.Node, n.Allocatable, n.Images = o.Node, o.Allocatable, o.Images // these are replaced, never changed
	n.Version, n.Pods = o.Version, copyPods(n.Pods, o.Pods)
	n.PodsWithAffinity = copyPods(n.PodsWithAffinity, o.PodsWithAffinity)
	n.PodsWithRequiredAntiAffinity = copyPods(n.PodsWithRequiredAntiAffinity, o.PodsWithRequiredAntiAffinity)
	n.Requested, n.Scored = o.Requested.Clone(), o.Scored.Clone()
	n.UsedPorts, n.Claims = maps.Clone(o.UsedPorts), maps.Clone(o.Claims)
}

func copyPods(dst, from []*PodInfo) []*PodInfo {
	if len(from) < len(dst) {
		clear(dst[len(from):]) // leftover pointers would keep pods alive
	}
	return append(dst[:0], from...)
}
