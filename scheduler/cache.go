package scheduler

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// cache is the cluster as the scheduler believes it to be. Informer events change it, a node or a pod
// at a time, and record which nodes have changed; a scheduling cycle begins by copying those into its
// snapshot (snapshot.go).
//
// A pod for which a node was just chosen is assumed: it counts on that node at once. It stays until
// the informer shows the pod bound (it is then confirmed), deleted, or until the binding
// failed and the pod is forgotten. Without this, pods of one burst would all see the same room.
//
// All methods expect mu to be held.
type cache struct {
	mu     sync.Mutex
	nodes  map[string]*cachedNode
	order  []*cachedNode // those with a Node, for walking
	pods   map[types.UID]*cachedPod
	images map[string]int // the number of nodes that have each

	// changed holds the nodes that have changed since the last snapshot. It is a slice, because a map
	// that once held all nodes takes long to iterate over even when it is empty.
	changed       []*cachedNode
	imagesChanged bool
}

type cachedNode struct {
	name  string
	info  *framework.NodeInfo
	at    int  // position in order; -1 while the Node object is not there
	dirty bool // it is in changed
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
	if n.at < 0 {
		n.at = len(c.order)
		c.order = append(c.order, n)
	}
}

// removeNode removes a Node. Pods that are still bound to it are kept in case it returns.
func (c *cache) removeNode(name string) {
	if n := c.nodes[name]; n == nil || n.at < 0 {
		return
	}
	n, last := c.change(name), len(c.order)-1
	c.order[n.at], c.order[last] = c.order[last], nil
	if n.at < last {
		c.order[n.at].at = n.at
	}
	c.order = c.order[:last]
	n.at = -1
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

// assume counts a pod on a node before the API server knows.
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

// removePod removes a pod, assumed or not, and returns it; nil if it was not there.
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

// sizes are how many nodes, pods and, of these, assumed pods there are.
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
		n = &cachedNode{name: name, info: framework.NewNodeInfo(nil), at: -1}
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
	if n.at < 0 && len(n.info.Pods) == 0 {
		delete(c.nodes, n.name)
	}
}
