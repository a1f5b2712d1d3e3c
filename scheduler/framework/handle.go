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

// Registry maps plugin names to factories.
type Registry map[string]Factory

// Handle is the part of the scheduler that its plugins may use.
type Handle interface {
	// Client returns a client of the API server. It must not be used in the scheduling cycle.
	Client() kubernetes.Interface
	// Informers returns the shared informers. The scheduler waits until the informers whose listers a factory has
	// requested have synced.
	Informers() informers.SharedInformerFactory
	Clock() clock.WithTicker
	Log() *slog.Logger
	// Event records an Event about an object of kind Pod.
	Event(pod *corev1.Pod, kind, reason, action, message string)

	// FilterWithNominated runs the profile's filters for a pod and a node. If pods of equal or higher priority are
	// nominated to the node, it runs them once with these pods and once without.
	FilterWithNominated(state *CycleState, pod *PodInfo, node *NodeInfo) *Status
	// AddPod and RemovePod report a simulated change to the plugins.
	AddPod(state *CycleState, pod, added *PodInfo, node *NodeInfo) *Status
	RemovePod(state *CycleState, pod, removed *PodInfo, node *NodeInfo) *Status
	// NominatedPods returns the pods that wait for room on a node.
	NominatedPods(node string) []*PodInfo
	// WaitingPod reports whether a pod has its node and is in Permit or PreBind; reject ends that step.
	WaitingPod(pod *corev1.Pod) (reject func(reason string), waiting bool)
	// Parallel calls f for 0 to n-1, concurrently if that is faster.
	Parallel(n int, f func(i int))
}

// QueuedPod is a waiting pod, as a QueueSortPlugin sees it.
type QueuedPod struct {
	*PodInfo
	// Added is when the pod entered the queue for this attempt; First, for its first one.
	Added, First time.Time
	// Attempts is the number of attempts so far.
	Attempts int
}
