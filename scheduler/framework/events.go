package framework

import "strings"

// EventResource is a kind of object whose changes can make a pod schedulable.
type EventResource string

// The resources, with the names that the metric scheduler_queue_incoming_pods_total uses.
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

// ClusterEvent is a kind of change in the cluster that can make a pod schedulable.
type ClusterEvent struct {
	Resource EventResource
	Action   ActionType
}

// String returns the event as metrics name it: AssignedPodDelete, NodeUpdateNodeTaint|UpdateNodeLabel.
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

// Change is one change in the cluster.
type Change struct {
	ClusterEvent
	// Old is the object before the change, nil if it was added; New the object after it, nil if it was deleted.
	Old, New any
}

// EnqueueExtensions lists the events that can reverse the plugin's rejection of a pod. A rejected pod sleeps until
// such an event; without this interface every event wakes it.
type EnqueueExtensions interface {
	Plugin
	EventsToRegister() []EventHint
}

// EventHint names an event that may help a pod, and the cases in which it certainly does not.
type EventHint struct {
	Event ClusterEvent
	// Helps, if not nil, reports whether this change may help this pod. If in doubt, it must return true. It may be
	// called at any time, from any goroutine.
	Helps func(pod *PodInfo, change *Change) bool
}

// Matches reports whether the hint applies to a kind of change.
func (h EventHint) Matches(e ClusterEvent) bool {
	return h.Event.Resource == e.Resource && h.Event.Action&e.Action != 0
}

// NodeHint makes a Helps function from a predicate on the changed node.
func NodeHint(suits func(pod *PodInfo, node *NodeInfo) bool) func(*PodInfo, *Change) bool {
	return func(pod *PodInfo, change *Change) bool {
		node, ok := change.New.(*NodeInfo)
		return !ok || suits(pod, node)
	}
}
