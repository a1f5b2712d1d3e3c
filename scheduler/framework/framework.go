// Package framework defines the types that the scheduler and its plugins share. It does not know queues or HTTP: a
// plugin sees a pod, a node, and the pods that are already on it.
//
// A scheduling plugin is one small type with a Name. It takes part in each step of scheduling whose interface it
// implements. The names of the steps are Kubernetes' own:
//
//	QueueSort    which of two waiting pods is tried first?
//	PreEnqueue   may the pod enter the queue at all?
//	PreFilter    look once at the pod: precompute, narrow the nodes, or leave the cycle (Skip)
//	Filter       can this pod run on this node?
//	PostFilter   no node was found: can room be made?
//	PreScore     look once at the pod and the nodes that passed
//	Score        how well does this node suit, 0 to MaxNodeScore? (then NormalizeScore)
//	Reserve      the node is chosen: reserve the resources that belong to it, or release them
//	Permit       the last check before the binding; may wait or reject
//	PreBind      do the work that the pod needs before it is bound, such as binding volumes
//	Bind         write the binding to the API server
//	PostBind     the pod is bound
//
// PreFilter to Reserve run in the scheduling cycle, one pod at a time, on a snapshot that does not
// change meanwhile; they must not do I/O. Filter may be called for several nodes at once. Permit to
// PostBind run in the binding cycle, concurrently for many pods.
package framework

import (
	"context"
	"maps"

	corev1 "k8s.io/api/core/v1"
)

// MaxNodeScore is the score of a perfect node. Scores start at zero.
const MaxNodeScore int64 = 100

// Plugin is a scheduling plugin. It implements at least one of the other interfaces as well.
type Plugin interface {
	// Name is the plugin's name in events, logs and metrics.
	Name() string
}

// QueueSortPlugin orders the waiting pods. All profiles must use the same one.
type QueueSortPlugin interface {
	Plugin
	Less(a, b *QueuedPod) bool
}

// PreEnqueuePlugin holds pods back from the queue. A rejected pod waits for an event that the plugin
// has registered for.
type PreEnqueuePlugin interface {
	Plugin
	PreEnqueue(pod *corev1.Pod) *Status
}

// PreFilterPlugin examines a pod once before the nodes are filtered. It returns a status with code Skip if its
// Filter would pass every node; the Filter is then not called for this pod.
type PreFilterPlugin interface {
	Plugin
	PreFilter(state *CycleState, pod *PodInfo, nodes Snapshot) (*PreFilterResult, *Status)
}

// PreFilterExtensions is for plugins whose PreFilter records data about other pods. They update the data for a
// simulation that adds a pod to a node, or removes one from it.
type PreFilterExtensions interface {
	AddPod(state *CycleState, pod, added *PodInfo, node *NodeInfo) *Status
	RemovePod(state *CycleState, pod, removed *PodInfo, node *NodeInfo) *Status
}

// PreFilterResult narrows the nodes that are worth filtering.
type PreFilterResult struct {
	// NodeNames are the only nodes that can suit; nil leaves all.
	NodeNames map[string]struct{}
}

// FilterPlugin decides whether a pod can run on a node. A nil status means that it can.
type FilterPlugin interface {
	Plugin
	Filter(state *CycleState, pod *PodInfo, node *NodeInfo) *Status
}

// PostFilterPlugin runs if no node passed the filters. With code Success it has made room, or will make it;
// otherwise the reasons are added to the pod's FailedScheduling message.
type PostFilterPlugin interface {
	Plugin
	PostFilter(ctx context.Context, state *CycleState, pod *PodInfo, nodes Snapshot, diagnosis *Diagnosis) (
		*PostFilterResult, *Status)
}

// PostFilterResult is the change to a pod's status.nominatedNodeName. A nil result leaves it as it is.
type PostFilterResult struct {
	// NominatedNodeName is the node that the pod is expected to run on soon; "" removes a nomination.
	NominatedNodeName string
	// Victims is the number of pods that are preempted for it, for metrics.
	Victims int
	// Then, if not nil, is called after the scheduling cycle to make the room. The pod waits for it.
	Then func(ctx context.Context) error
}

// PreScorePlugin is called once with a pod, the nodes that passed the filters, and all nodes. With code
// Skip, its Score is not called in this cycle.
type PreScorePlugin interface {
	Plugin
	PreScore(state *CycleState, pod *PodInfo, passed []*NodeInfo, nodes Snapshot) *Status
}

// ScorePlugin ranks the nodes that passed the filters.
type ScorePlugin interface {
	Plugin
	Score(state *CycleState, pod *PodInfo, node *NodeInfo) int64
}

// ScoreNormalizer scales the raw scores of a ScorePlugin for all nodes to 0 to MaxNodeScore, in place. Without it
// the raw scores must be in that range.
type ScoreNormalizer interface {
	NormalizeScore(state *CycleState, pod *PodInfo, nodes []*NodeInfo, scores []int64)
}

// ReservePlugin reserves the resources that belong to a node once it is chosen. Unreserve must undo the effects of
// Reserve, even if Reserve failed or was never called.
type ReservePlugin interface {
	Plugin
	Reserve(state *CycleState, pod *PodInfo, node string) *Status
	Unreserve(state *CycleState, pod *PodInfo, node string)
}

// PermitPlugin makes the last check before a pod is bound. It may block until ctx ends: only its own pod waits.
type PermitPlugin interface {
	Plugin
	Permit(ctx context.Context, state *CycleState, pod *PodInfo, node string) *Status
}

// PreBindPlugin does the work that must be done before the pod is bound. PreBindPreFlight, in the scheduling cycle,
// reports whether there is any; with code Skip, PreBind is not called.
type PreBindPlugin interface {
	Plugin
	PreBindPreFlight(state *CycleState, pod *PodInfo, node string) *Status
	PreBind(ctx context.Context, state *CycleState, pod *PodInfo, node string) *Status
}

// BindPlugin binds a pod to a node. It returns a status with code Skip to leave that to the next plugin.
type BindPlugin interface {
	Plugin
	Bind(ctx context.Context, state *CycleState, pod *corev1.Pod, node string) *Status
}

// PostBindPlugin is called after a pod was bound.
type PostBindPlugin interface {
	Plugin
	PostBind(ctx context.Context, state *CycleState, pod *PodInfo, node string)
}

// Snapshot is the scheduler's view of the cluster during one scheduling cycle: the nodes with the pods that are
// bound to them or assumed to be. Callers must not change the results.
type Snapshot interface {
	// Nodes returns all nodes. Neighbours in the list are in different zones if possible.
	Nodes() []*NodeInfo
	// Node returns the node with a name, or nil.
	Node(name string) *NodeInfo
	// NodesWithAffinity returns the nodes that have a pod with inter-pod (anti-)affinity, and
	// NodesWithRequiredAntiAffinity the nodes that have a pod with required anti-affinity.
	NodesWithAffinity() []*NodeInfo
	NodesWithRequiredAntiAffinity() []*NodeInfo
	// ImageNodes returns the number of nodes that have an image.
	ImageNodes(name string) int
}

// CycleState carries plugins' data about one pod between the steps of one attempt. Its zero value is
// ready for use. It belongs to the attempt; while nodes are filtered it is only read.
type CycleState struct {
	notes map[string]any
}

// Cloner is a value in the CycleState that PreFilterExtensions change. A simulation needs a copy of it.
type Cloner interface {
	Clone() any
}

// Write stores value under key, by convention the name of the plugin and the step that wrote it.
func (s *CycleState) Write(key string, value any) {
	if s.notes == nil {
		s.notes = make(map[string]any, 4)
	}
	s.notes[key] = value
}

// Read returns the value under key, or nil. A nil state is empty.
func (s *CycleState) Read(key string) any {
	if s == nil {
		return nil
	}
	return s.notes[key]
}

// Clone copies the state for a simulation on changed nodes: it clones Cloners, and shares the other
// values.
func (s *CycleState) Clone() *CycleState {
	c := &CycleState{notes: maps.Clone(s.notes)}
	for key, note := range c.notes {
		if cloner, ok := note.(Cloner); ok {
			c.notes[key] = cloner.Clone()
		}
	}
	return c
}
