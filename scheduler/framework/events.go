package framework

import "strings"

// EventResource is a sort of object whose changes can make a pod schedulable.
type EventResource string

// The resources, in the words that the metric scheduler_queue_incoming_pods_total uses.
const (
	// Node: Change.Old and New are *NodeInfo without pods.
	Node EventResource = "Node"
	// AssignedPod is a pod with a node: Change.Old and New are *PodInfo.
	AssignedPod EventResource = "AssignedPod"
	// UnscheduledPod is the waiting pod itself: Change.Old and New are *PodInfo.
	UnscheduledPod EventResource = "UnscheduledPod"
	// For the others, Change.Old and New are pointers to the API objects.
	Namespace             EventResource = "Namespace"
	PersistentVolume      EventResource = "PersistentVolume"
	PersistentVolumeClaim EventResource = "PersistentVolumeClaim"
	StorageClass          EventResource = "StorageClass"
	CSINode               EventResource = "CSINode"
	CSIDriver             EventResource = "CSIDriver"
	CSIStorageCapacity    EventResource = "CSIStorageCapacity"
	VolumeAttachment      EventResource = "VolumeAttachment"
)

// ActionType is a set of bits that describes how an object changed.
type ActionType uint32

// For an update of a node or a pod, the bits name the parts that have changed.
const (
	Add ActionType = 1 << iota
	Delete
	UpdateNodeAllocatable
	UpdateNodeLabel
	UpdateNodeTaint
	UpdateNodeAnnotation
	UpdatePodLabel
	UpdatePodScaleDown
	UpdatePodToleration
	UpdatePodSchedulingGatesEliminated
	UpdateOther

	Update = UpdateNodeAllocatable | UpdateNodeLabel | UpdateNodeTaint | UpdateNodeAnnotation | UpdatePodLabel |
		UpdatePodScaleDown | UpdatePodToleration | UpdatePodSchedulingGatesEliminated | UpdateOther
	All = Add | Delete | Update
)

var actionNames = []string{"Add", "Delete", "UpdateNodeAllocatable", "UpdateNodeLabel", "UpdateNodeTaint",
	"UpdateNodeAnnotation", "UpdatePodLabel", "UpdatePodScaleDown", "UpdatePodToleration",
	"UpdatePodSchedulingGatesEliminated", "Update"}

// ClusterEvent is a kind of change in the cluster that could make a pod schedulable.
type ClusterEvent struct {
	Resource EventResource
	Action   ActionType
}

// String words the event for metrics: AssignedPodDelete, NodeUpdateNodeTaint|UpdateNodeLabel.
func (e ClusterEvent) String() string {
	if e.Action == Update {
		return string(e.Resource) + "Update"
	}
	var names []string
	for bit, name := range actionNames {
		if e.Action&(1<<bit) != 0 {
			names = append(names, name)
		}
	}
	return string(e.Resource) + strings.Join(names, "|")
}

// Change is something that happened in the cluster.
type Change struct {
	ClusterEvent
	// Old is the object before, nil where it was added; New the object now, nil where it is gone.
	Old, New any
}

// EnqueueExtensions names what could turn the plugin's refusal of a pod around. A pod that was refused
// sleeps until such a change; without this interface every change wakes it.
type EnqueueExtensions interface {
	Plugin
	EventsToRegister() []EventHint
}

// EventHint says that an event may help, and when it is sure not to.
type EventHint struct {
	Event ClusterEvent
	// Helps, where given, is asked whether this very change may help this pod. When in doubt: true.
	// It may be called at any time, from any goroutine.
	Helps func(pod *PodInfo, change *Change) bool
}

// Matches reports whether the hint is about a change of this sort.
func (h EventHint) Matches(e ClusterEvent) bool {
	return h.Event.Resource == e.Resource && h.Event.Action&e.Action != 0
}

// NodeHint makes a Helps of a question about the changed node.
func NodeHint(suits func(pod *PodInfo, node *NodeInfo) bool) func(*PodInfo, *Change) bool {
	return func(pod *PodInfo, change *Change) bool {
		node, ok := change.New.(*NodeInfo)
		return !ok || suits(pod, node)
	}
}
