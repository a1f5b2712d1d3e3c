package plugins

import "github.com/coxswain-dev/coxswain/scheduler/framework"

// NodeName passes only the node in spec.nodeName. A pod with a node name is bound already and is not
// scheduled, but simulations may include one.
type NodeName struct{}

var nodeNameMismatch = framework.NewStatus("NodeName", framework.UnschedulableAndUnresolvable,
	"node(s) didn't match the requested node name")

// Name implements framework.Plugin.
func (NodeName) Name() string { return "NodeName" }

// PreFilter implements framework.PreFilterPlugin.
func (p NodeName) PreFilter(_ *framework.CycleState, pod *framework.PodInfo, _ framework.Snapshot) (
	*framework.PreFilterResult, *framework.Status) {
	if pod.Pod.Spec.NodeName == "" {
		return nil, skip
	}
	return nil, nil
}

// Filter implements framework.FilterPlugin.
func (NodeName) Filter(_ *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	if want := pod.Pod.Spec.NodeName; want != "" && want != node.Node.Name {
		return nodeNameMismatch
	}
	return nil
}

// EventsToRegister implements framework.EnqueueExtensions.
func (NodeName) EventsToRegister() []framework.EventHint {
	return []framework.EventHint{{Event: event(framework.Node, framework.Add)}}
}
