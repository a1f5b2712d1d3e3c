package scheduler

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// cache is the scheduler's view of the cluster. Informer events change one node or pod at a time, and record the
// changed nodes; a scheduling cycle begins by copying these nodes into its snapshot (snapshot.go).
//
// When a node has been chosen for a pod, the pod is assumed: it counts on that node at once. It stays until the
// informer shows the pod bound (it is then confirmed) or deleted, or until the binding failed and the pod is
// forgotten. Otherwise all pods of a burst would see the same free room.
//
// All methods expect mu to be held.
type cache struct {
	mu     sync.Mutex
	nodes  map[string]*cachedNode
	order  []*cachedNode // entries with a Node, in a slice for iteration
	pods   map[types.UID]*cachedPod
	images map[string]int // the number of nodes that have each image

	// changed contains the nodes that have changed since the last snapshot. It is a slice, because a map that once
	// contained all nodes takes long to iterate over even when it is empty.
	changed       []*cachedNode
	imagesChanged bool
}

type cachedNode struct {
	name     string
	info     *framework.NodeInfo
	position int  // position in order; -1 if there is no Node object
	dirty    bool // it is in changed
}

type cachedPod struct {
	info    *framework.PodInfo
	node    string
	assumed bool
}

func newCache() *cache {
	return &cache{
		nodes: map[string]*cachedNode{}, pods: map[types.UID]*cachedPod{}, images: map[string]int{},
	}
}

// setNode adds or replaces a Node.
func (c *cache) setNode(node *corev1.Node) {
	n := c.change(node.Name)
	c.countImages(n.info, -1)
	n.info.SetNode(node)
	c.countImages(n.info, 1)
	if n.position < 0 {
		n.position = len(c.order)
		c.order = append(c.order, n)
	}
}

// removeNode removes a Node. Pods that are still bound to it are kept in case it returns.
func (c *cache) removeNode(name string) {
	if n := c.nodes[name]; n == nil || n.position < 0 {
		return
	}
	n, last := c.change(name), len(c.order)-1
	c.order[n.position], c.order[last] = c.order[last], nil
	if n.position < last {
		c.order[n.position].position = n.position
	}
	c.order = c.order[:last]
	n.position = -1
	c.countImages(n.info, -1)
	n.info.SetNode(nil)
	c.drop(n)
}

func (c *cache) countImages(n *framework.NodeInfo, sign int) {
	for name := range n.Images {
		c.imagesChanged = true
		if c.images[name] += sign; c.images[name] == 0 {
			delete(c.images, name)
		}
	}
}

// setPod adds a bound pod or replaces it, and confirms it if it was assumed.
func (c *cache) setPod(info *framework.PodInfo) {
	uid, node := info.Pod.UID, info.Pod.Spec.NodeName
	c.removePod(uid)
	c.pods[uid] = &cachedPod{info: info, node: node}
	c.change(node).info.AddPod(info)
}

// assume counts a pod on a node before the API server knows about the binding.
func (c *cache) assume(info *framework.PodInfo, node string) {
	c.pods[info.Pod.UID] = &cachedPod{info: info, node: node, assumed: true}
	c.change(node).info.AddPod(info)
}

// forget removes an assumed pod, unless it was confirmed meanwhile.
func (c *cache) forget(uid types.UID) bool {
	if p := c.pods[uid]; p == nil || !p.assumed {
		return false
	}
	return c.removePod(uid) != nil
}

// removePod removes a pod, assumed or not, and returns it; nil if there was none.
func (c *cache) removePod(uid types.UID) *framework.PodInfo {
	p := c.pods[uid]
	if p == nil {
		return nil
	}
	delete(c.pods, uid)
	n := c.change(p.node)
	n.info.RemovePod(uid)
	c.drop(n)
	return p.info
}

// has reports whether a pod is bound or assumed.
func (c *cache) has(uid types.UID) bool { return c.pods[uid] != nil }

// sizes returns the numbers of nodes, pods and assumed pods.
func (c *cache) sizes() (nodes, pods, assumed int) {
	for _, p := range c.pods {
		if p.assumed {
			assumed++
		}
	}
	return len(c.order), len(c.pods), assumed
}

// change returns the entry of a node that is about to be changed.
func (c *cache) change(name string) *cachedNode {
	n := c.nodes[name]
	if n == nil {
		n = &cachedNode{name: name, info: framework.NewNodeInfo(nil), position: -1}
		c.nodes[name] = n
	}
	if !n.dirty {
		n.dirty = true
		c.changed = append(c.changed, n)
	}
	return n
}

// drop removes an entry that has neither a Node nor pods.
func (c *cache) drop(n *cachedNode) {
	if n.position < 0 && len(n.info.Pods) == 0 {
		delete(c.nodes, n.name)
	}
}
