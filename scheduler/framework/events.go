package framework

// ClusterEvent is a kind of change in the cluster that could make a pod schedulable.
type ClusterEvent int

const (
	// NodeAdded: a node appeared. The hint sees the new node.
	NodeAdded ClusterEvent = iota
	// NodeUpdated: labels, taints, allocatable or spec.unschedulable of a node changed. The hint sees
	// the node as it is now.
	NodeUpdated
	// AssignedPodDeleted: a pod that was bound, or assumed to be, is gone and leaves room. The hint
	// sees no node.
	AssignedPodDeleted
	// AssignedPodUpdated: labels or requests of a bound pod changed.
	AssignedPodUpdated
	// AssignedPodAdded: a pod was bound, which can satisfy another's affinity.
	AssignedPodAdded
	// PodUpdated: the waiting pod itself was changed.
	PodUpdated

	clusterEvents // how many there are
)

// ClusterEvents is the number of kinds of events; they count from zero.
const ClusterEvents = int(clusterEvents)

// EventHint says that an event may help, and when it is sure not to.
type EventHint struct {
	Event ClusterEvent
	// Helps, where given, is asked whether this very event may help this pod. It sees the node of
	// a node event (only the Node and what derives from it, no pods), else nil. When in doubt: true.
	Helps func(pod *PodInfo, node *NodeInfo) bool
}
