package scheduler

import (
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// nominator records the pods that wait for preemption to make room for them on a node (status.nominatedNodeName),
// so that no pod of lower priority takes the room.
type nominator struct {
	mu     sync.RWMutex
	byNode map[string][]*framework.PodInfo
	node   map[types.UID]string
}

func newNominator() *nominator {
	return &nominator{byNode: map[string][]*framework.PodInfo{}, node: map[types.UID]string{}}
}

// set nominates a pod for one node; with "" it removes the nomination.
func (n *nominator) set(pod *framework.PodInfo, node string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.remove(pod.Pod.UID)
	if node != "" {
		n.node[pod.Pod.UID] = node
		n.byNode[node] = append(n.byNode[node], pod)
	}
}

// seen updates a pod to its state in an informer. A nomination that is not written yet is kept.
func (n *nominator) seen(old, pod *framework.PodInfo) {
	node := pod.Pod.Status.NominatedNodeName
	if node == "" && (old == nil || old.Pod.Status.NominatedNodeName == "") {
		node = n.of(pod.Pod.UID)
	}
	if node != "" || n.of(pod.Pod.UID) != "" {
		n.set(pod, node)
	}
}

// of returns the node that a pod is nominated for, or "".
func (n *nominator) of(uid types.UID) string {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.node[uid]
}

// forget removes a nomination.
func (n *nominator) forget(uid types.UID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.remove(uid)
}

func (n *nominator) remove(uid types.UID) {
	node, ok := n.node[uid]
	if !ok {
		return
	}
	delete(n.node, uid)
	// In a new slice: on has returned the old one.
	var remaining []*framework.PodInfo
	for _, p := range n.byNode[node] {
		if p.Pod.UID != uid {
			remaining = append(remaining, p)
		}
	}
	if n.byNode[node] = remaining; remaining == nil {
		delete(n.byNode, node)
	}
}

// on returns the pods that are nominated for a node.
func (n *nominator) on(node string) []*framework.PodInfo {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return slices.Clip(n.byNode[node])
}

// none reports whether there are no nominations.
func (n *nominator) none() bool {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return len(n.node) == 0
}
