package plugins

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// NodeUnschedulable rejects cordoned nodes (spec.unschedulable) unless the pod tolerates the
// corresponding taint, as a DaemonSet's pods do.
type NodeUnschedulable struct{}

var (
	nodeUnschedulable = framework.NewStatus("NodeUnschedulable", framework.UnschedulableAndUnresolvable,
		"node(s) were unschedulable")
	unschedulableTaint = corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}
)

// Name implements framework.Plugin.
func (NodeUnschedulable) Name() string { return "NodeUnschedulable" }

// Filter implements framework.FilterPlugin.
func (NodeUnschedulable) Filter(_ *framework.CycleState, pod *framework.PodInfo,
	node *framework.NodeInfo) *framework.Status {
	if node.Node.Spec.Unschedulable && !tolerates(pod.Pod.Spec.Tolerations, &unschedulableTaint) {
		return nodeUnschedulable
	}
	return nil
}

// EventsToRegister implements framework.EnqueueExtensions.
func (NodeUnschedulable) EventsToRegister() []framework.EventHint {
	return []framework.EventHint{
		{Event: event(framework.Node, framework.Add|framework.UpdateNodeTaint),
			Helps: framework.NodeHint(func(_ *framework.PodInfo, node *framework.NodeInfo) bool {
				return !node.Node.Spec.Unschedulable
			})},
		{Event: event(framework.UnscheduledPod, framework.UpdatePodToleration)},
	}
}
