package plugins

import "github.com/coxswain-dev/coxswain/scheduler/framework"

// NodePorts rejects nodes whose host ports conflict with the pod's.
type NodePorts struct{}

var portsTaken = framework.NewStatus("NodePorts", framework.Unschedulable,
	"node(s) didn't have free ports for the requested pod ports")

// Name implements framework.Plugin.
func (NodePorts) Name() string { return "NodePorts" }

// PreFilter implements framework.PreFilterPlugin.
func (NodePorts) PreFilter(_ *framework.CycleState, pod *framework.PodInfo, _ framework.Snapshot) (
	*framework.PreFilterResult, *framework.Status) {
	if len(pod.HostPorts) == 0 {
		return nil, skip
	}
	return nil, nil
}

// Filter implements framework.FilterPlugin.
func (NodePorts) Filter(_ *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	if !node.PortsFree(pod.HostPorts) {
		return portsTaken
	}
	return nil
}

// EventsToRegister implements framework.EnqueueExtensions.
func (NodePorts) EventsToRegister() []framework.EventHint {
	return []framework.EventHint{
		{Event: event(framework.Node, framework.Add)},
		{Event: event(framework.AssignedPod, framework.Delete),
			Helps: func(pod *framework.PodInfo, change *framework.Change) bool {
				deleted, ok := change.Old.(*framework.PodInfo)
				return !ok || !framework.NewNodeInfo(nil, deleted).PortsFree(pod.HostPorts)
			}},
	}
}
