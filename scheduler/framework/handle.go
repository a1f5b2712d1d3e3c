package framework

import (
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
)

// Factory makes a plugin for one profile.
type Factory func(args Args, h Handle) (Plugin, error)

// Registry is factories by plugin name.
type Registry map[string]Factory

// Handle is what a plugin may use of the scheduler that runs it.
type Handle interface {
	// Client reaches the API server. Not for the scheduling cycle.
	Client() kubernetes.Interface
	// Informers has the shared informers; a factory that asks it for a lister makes the scheduler
	// wait until that has synced.
	Informers() informers.SharedInformerFactory
	Clock() clock.WithTicker
	Log() *slog.Logger
	// Event records an Event about an object of kind Pod.
	Event(pod *corev1.Pod, kind, reason, action, message string)

	// FilterWithNominated runs the profile's filters for a pod and a node, once with the pods of
	// equal or higher priority that are nominated to the node and, where there are such, once without.
	FilterWithNominated(state *CycleState, pod *PodInfo, node *NodeInfo) *Status
	// AddPod and RemovePod tell the plugins of a what-if.
	AddPod(state *CycleState, pod, added *PodInfo, node *NodeInfo) *Status
	RemovePod(state *CycleState, pod, removed *PodInfo, node *NodeInfo) *Status
	// NominatedPods are the pods that wait for room on a node.
	NominatedPods(node string) []*PodInfo
	// WaitingPod says whether a pod has its node and is in Permit or PreBind; reject ends that.
	WaitingPod(pod *corev1.Pod) (reject func(reason string), waiting bool)
	// Parallel calls f for 0 to n-1, several at once where that pays.
	Parallel(n int, f func(i int))
}

// QueuedPod is a pod that waits for its turn, as a QueueSortPlugin sees it.
type QueuedPod struct {
	*PodInfo
	// Added is when the pod came to the queue for this attempt; First, for its first.
	Added, First time.Time
	// Attempts counts the attempts that were made.
	Attempts int
}
