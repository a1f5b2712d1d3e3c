// Package framework is the vocabulary that the scheduler and its plugins share. It knows nothing
// of queues, informers or HTTP: what a plugin sees is a pod, a node, and what is already on it.
//
// A scheduling plugin is one small type with a Name. It takes part in as many steps of a pod's way
// as it implements interfaces of this package, and the names of the steps are Kubernetes' own:
//
//	PreEnqueue   may the pod enter the queue at all?
//	PreFilter    look once at the pod: precompute, narrow the nodes, or leave the cycle (Skip)
//	Filter       can this pod run on this node?
//	PostFilter   no node was found: can room be made?
//	PreScore     look once at the pod and the nodes that passed
//	Score        how well does this node suit, 0 to MaxNodeScore?
//	Reserve      the node is chosen: claim what goes with it, or give it back
//	Permit       last word before the binding; may refuse
//	Bind         tell the API server
//
// PreEnqueue to Reserve run in the scheduling cycle: one pod at a time, under the lock of the
// snapshot, so that plugins need no lock for what they read and must not do I/O. Permit and
// Bind run in the binding cycle, concurrently for many pods.
package framework

import (
	"context"
	"maps"

	corev1 "k8s.io/api/core/v1"
)

// MaxNodeScore is the score of a node that could not suit better. Scores start at zero.
const MaxNodeScore int64 = 100

// Plugin is a scheduling plugin. It implements at least one of the other interfaces as well.
type Plugin interface {
	// Name is what events, logs and metrics call the plugin.
	Name() string
}

// PreEnqueuePlugin holds pods back from the queue. A pod that was refused waits until it is updated.
type PreEnqueuePlugin interface {
	Plugin
	PreEnqueue(pod *corev1.Pod) *Status
}

// PreFilterPlugin looks at a pod once before the nodes are filtered. It returns a status with
// code Skip where its Filter would pass every node; the Filter is then not called for this pod.
type PreFilterPlugin interface {
	Plugin
	PreFilter(state *CycleState, pod *PodInfo, nodes Snapshot) (*PreFilterResult, *Status)
}

// PreFilterResult narrows the nodes that are worth filtering.
type PreFilterResult struct {
	// NodeNames are the only nodes that can suit; nil leaves all.
	NodeNames map[string]struct{}
}

// FilterPlugin says whether a pod can run on a node. A nil status means that it can.
type FilterPlugin interface {
	Plugin
	Filter(state *CycleState, pod *PodInfo, node *NodeInfo) *Status
}

// PostFilterPlugin runs where no node passed the filters. It returns the name of a node on which it
// has made room ("" for none) and a status whose reasons join the pod's FailedScheduling message.
type PostFilterPlugin interface {
	Plugin
	PostFilter(ctx context.Context, state *CycleState, pod *PodInfo, nodes Snapshot, diagnosis *Diagnosis) (nominated string, status *Status)
}

// PreScorePlugin looks once at a pod and the nodes that passed the filters. Code Skip takes its
// Score out of the cycle.
type PreScorePlugin interface {
	Plugin
	PreScore(state *CycleState, pod *PodInfo, nodes []*NodeInfo) *Status
}

// ScorePlugin ranks the nodes that passed the filters.
type ScorePlugin interface {
	Plugin
	Score(state *CycleState, pod *PodInfo, node *NodeInfo) int64
}

// ScoreNormalizer brings the raw scores of a ScorePlugin for all nodes into 0 to MaxNodeScore, in place.
// Without it the raw scores have to be in that range.
type ScoreNormalizer interface {
	NormalizeScore(state *CycleState, pod *PodInfo, scores []int64)
}

// ReservePlugin claims what goes with a node once it is chosen. Unreserve must undo
// whatever Reserve did, also where Reserve failed or was never called.
type ReservePlugin interface {
	Plugin
	Reserve(state *CycleState, pod *PodInfo, node string) *Status
	Unreserve(state *CycleState, pod *PodInfo, node string)
}

// PermitPlugin has the last word before a pod is bound. It may block until ctx ends.
type PermitPlugin interface {
	Plugin
	Permit(ctx context.Context, state *CycleState, pod *PodInfo, node string) *Status
}

// BindPlugin binds a pod to a node. It returns a status with code Skip to leave that to the next.
type BindPlugin interface {
	Plugin
	Bind(ctx context.Context, state *CycleState, pod *corev1.Pod, node string) *Status
}

// EventsPlugin names what could turn the plugin's refusal of a pod around. A pod that was refused
// sleeps until such an event happens; without this interface every event wakes it.
type EventsPlugin interface {
	Plugin
	EventsToRegister() []EventHint
}

// Weighted gives the scores of a ScorePlugin a weight other than 1 when they are summed.
type Weighted interface {
	Weight() int64
}

// Snapshot is the cluster as the scheduler believes it to be during one scheduling cycle: the nodes with
// the pods that are bound to them or assumed to be.
type Snapshot interface {
	// Nodes are all the nodes in a stable order. Callers must not change the slice.
	Nodes() []*NodeInfo
	// Node is the node of that name, or nil.
	Node(name string) *NodeInfo
}

// CycleState carries what plugins note about one pod between the steps of one attempt. Its zero
// value is ready for use. It belongs to the attempt: never to two goroutines at once.
type CycleState struct {
	notes map[string]any
}

// Write notes value under key, by convention the name of the plugin and the step that wrote it.
func (s *CycleState) Write(key string, value any) {
	if s.notes == nil {
		s.notes = make(map[string]any, 4)
	}
	s.notes[key] = value
}

// Read returns what was noted under key, or nil.
func (s *CycleState) Read(key string) any { return s.notes[key] }

// Clone copies the state, not the values, for a what-if on changed nodes.
func (s *CycleState) Clone() *CycleState { return &CycleState{notes: maps.Clone(s.notes)} }
