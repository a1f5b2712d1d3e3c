package node

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/node/podstate"
	"github.com/coxswain-dev/coxswain/node/runtime"
)

// resizePod allocates the resources that the pod's spec asks for, if the node has them. The caller holds p.mu.
func (a *agent) resizePod(n *hostedNode, p *hostedPod) {
	pod := p.state.Pod()
	if !p.state.WantsResize() {
		p.state.SettleResize()
		n.account.settle(pod.UID)
		return
	}
	d := demandOf(pod)
	reason, s := corev1.PodReasonInfeasible, beyond(d.requests, a.allocatable)
	message := ""
	if s != nil {
		n.account.settle(pod.UID)
		message = fmt.Sprintf("Node didn't have enough capacity: %s, requested: %d, capacity: %d", s.resource,
			s.requested, s.capacity)
	} else if s = n.account.replace(runtime.KeyOf(pod), d, a.allocatable); s != nil {
		reason = corev1.PodReasonDeferred
		message = fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d",
			s.resource, s.requested, s.used, s.capacity)
	}
	if s == nil {
		p.state.Allocate()
		p.stale.Store(true) // the downward API shows resources
		a.retryResizes(n)   // the pod may have become smaller
		return
	}
	p.state.PendResize(reason, message)
}

// beyond returns the first resource that does not suffice for a resized pod even on an empty node; nil if all do.
func beyond(requested map[corev1.ResourceName]int64, capacity corev1.ResourceList) *shortage {
	only := map[corev1.ResourceName]int64{}
	for _, name := range podstate.ResizedResources {
		only[name] = requested[name]
	}
	return lacking(only, nil, capacity)
}

// releaseRoom removes a pod from a node's account, and queues the pods that wait for room for a resize.
func (a *agent) releaseRoom(n *hostedNode, pod types.UID) {
	if n.account.release(pod) {
		a.retryResizes(n)
	}
}

func (a *agent) retryResizes(n *hostedNode) {
	for _, key := range n.account.waiting() {
		a.podQueue.Add(key)
	}
}

// replace replaces a pod's demand, if there is room; otherwise it returns the shortage and records that the pod waits.
func (a *account) replace(key runtime.PodKey, d *demand, capacity corev1.ResourceList) *shortage {
	a.mu.Lock()
	defer a.mu.Unlock()
	others := make(map[corev1.ResourceName]int64, len(a.total))
	for name, n := range a.total {
		others[name] = n
	}
	if old := a.byPod[key.UID]; old != nil {
		for name, n := range old.requests {
			others[name] -= n
		}
	}
	if s := lacking(d.requests, others, capacity); s != nil {
		if a.deferred == nil {
			a.deferred = map[types.UID]runtime.PodKey{}
		}
		a.deferred[key.UID] = key
		return s
	}
	delete(a.deferred, key.UID)
	a.remove(key.UID)
	a.add(key.UID, d)
	return nil
}

// settle records that a pod does not wait for room.
func (a *account) settle(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.deferred, uid)
}

// waiting returns the pods that wait for room for a resize.
func (a *account) waiting() []runtime.PodKey {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := make([]runtime.PodKey, 0, len(a.deferred))
	for _, key := range a.deferred {
		all = append(all, key)
	}
	return all
}
