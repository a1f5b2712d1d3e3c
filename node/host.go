package node

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/coxswain-dev/coxswain/internal/client/events"
	"github.com/coxswain-dev/coxswain/node/runtime"
)

// This file implements runtime.Host.

// Event records an Event about a pod. It does not block and is safe for concurrent use.
func (a *agent) Event(pod *corev1.Pod, kind, reason, message string) {
	a.events.Record(events.Event{
		About: events.Pod(pod), Component: "kubelet", Host: pod.Spec.NodeName, Type: kind, Reason: reason,
		Message: message,
	})
}

// NodeEvent records an Event about a Node. As in the kubelet's Events, the UID is the Node's name: kubectl describe
// uses it to find them.
func (a *agent) NodeEvent(node, kind, reason, message string) {
	a.events.Record(events.Event{
		About:     corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(node)},
		Component: "kubelet", Host: node, Type: kind, Reason: reason, Message: message,
	})
}

func (a *agent) Wake(key runtime.PodKey) { a.podQueue.Add(key) }

// Refresh marks a pod's volumes and files as out of date, and queues the pod.
func (a *agent) Refresh(key runtime.PodKey) {
	if p := a.hostedPod(key.UID); p != nil {
		p.stale.Store(true)
		a.podQueue.Add(key)
	}
}

func (a *agent) NodeChanged(node string) { a.nodeQueue.Add(nodeTask{node, syncNode}) }

func (a *agent) Client(node string) kubernetes.Interface { return a.nodes[node].client }

func (a *agent) Subnet(node string) netip.Prefix { return a.nodes[node].addresses.subnet() }
