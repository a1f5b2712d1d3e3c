package scheduler

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// cache is the cluster as the scheduler believes it to be. Informer events change it in place, a
// node or a pod at a time, and a scheduling cycle reads it under its lock, so that there is no snapshot
// to copy; cycles are short, and what the informers deliver meanwhile waits in their buffers.
//
// A pod for which a node was just chosen is assumed: it counts on that node at once. It stays until
// the informer shows the pod bound (it is then confirmed), deleted, or until the binding
// failed and the pod is forgotten. Without this, pods of one burst would all see the same room.
//
// All methods expect mu to be held.
type cache struct {
	mu    sync.Mutex
	nodes map[string]*cachedNode
	order []*framework.NodeInfo // those with a Node, for walking
	pods  map[types.UID]*cachedPod
}

type cachedNode struct {
	info *framework.NodeInfo
	at   int // position in order; -1 while the Node object is not there
}

type cachedPod struct {
	info    *framework.PodInfo
	node    string
	assumed bool
}

func newCache() *cache {
	return &cache{nodes: map[string]*cachedNode{}, pods: map[types.UID]*cachedPod{}}
}

// Nodes implements framework.Snapshot.
func (c *cache) Nodes() []*framework.NodeInfo { return c.order }

// Node implements framework.Snapshot.
func (c *cache) Node(name string) *framework.NodeInfo {
	if n := c.nodes[name]; n != nil && n.at >= 0 {
		return n.info
	}
	return nil
}

// setNode adds or replaces a Node.
func (c *cache) setNode(node *corev1.Node) {
	n := c.entry(node.Name)
	n.info.SetNode(node)
	if n.at < 0 {
		n.at = len(c.order)
		c.order = append(c.order, n.info)
	}
}

// removeNode takes a Node out. Pods that are still bound to it are kept for the case that it returns.
func (c *cache) removeNode(name string) {
	n := c.nodes[name]
	if n == nil || n.at < 0 {
		return
	}
	last := len(c.order) - 1
	moved := c.order[last]
	c.order[n.at], c.order[last] = moved, nil
	c.nodes[moved.Node.Name].at = n.at
	c.order = c.order[:last]
	n.at = -1
	n.info.SetNode(nil)
	c.drop(name, n)
}

// setPod adds a bound pod or replaces it, and confirms it if it was assumed.
func (c *cache) setPod(info *framework.PodInfo) {
	uid, node := info.Pod.UID, info.Pod.Spec.NodeName
	c.removePod(uid)
	c.pods[uid] = &cachedPod{info: info, node: node}
	c.entry(node).info.AddPod(info)
}

// assume counts a pod on a node before the API server knows.
func (c *cache) assume(info *framework.PodInfo, node string) {
	c.pods[info.Pod.UID] = &cachedPod{info: info, node: node, assumed: true}
	c.entry(node).info.AddPod(info)
}

// forget takes an assumed pod back, unless it was confirmed meanwhile.
func (c *cache) forget(uid types.UID) bool {
	if p := c.pods[uid]; p == nil || !p.assumed {
		return false
	}
	return c.removePod(uid)
}

// removePod takes a pod out of the count, assumed or not, and reports whether it was there.
func (c *cache) removePod(uid types.UID) bool {
	p := c.pods[uid]
	if p == nil {
		return false
	}
	delete(c.pods, uid)
	n := c.nodes[p.node]
	n.info.RemovePod(uid)
	c.drop(p.node, n)
	return true
}

// has reports whether a pod is bound or assumed.
func (c *cache) has(uid types.UID) bool { return c.pods[uid] != nil }

func (c *cache) entry(name string) *cachedNode {
	n := c.nodes[name]
	if n == nil {
		n = &cachedNode{info: framework.NewNodeInfo(nil), at: -1}
		c.nodes[name] = n
	}
	return n
}

// drop removes an entry that stands for nothing any more.
func (c *cache) drop(name string, n *cachedNode) {
	if n.at < 0 && len(n.info.Pods) == 0 {
		delete(c.nodes, name)
	}
}
