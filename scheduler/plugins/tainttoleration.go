package plugins

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// TaintToleration rejects nodes with a NoSchedule or NoExecute taint that the pod does not tolerate, and prefers
// nodes with the fewest untolerated PreferNoSchedule taints.
type TaintToleration struct{}

var untoleratedTaint = framework.NewStatus("TaintToleration", framework.UnschedulableAndUnresolvable,
	"node(s) had untolerated taint(s)")

// Name implements framework.Plugin.
func (TaintToleration) Name() string { return "TaintToleration" }

// Filter implements framework.FilterPlugin.
func (TaintToleration) Filter(_ *framework.CycleState, pod *framework.PodInfo,
	node *framework.NodeInfo) *framework.Status {
	if untolerated(pod.Pod, node.Node) != nil {
		return untoleratedTaint
	}
	return nil
}

// PreScore implements framework.PreScorePlugin.
func (TaintToleration) PreScore(_ *framework.CycleState, _ *framework.PodInfo, nodes []*framework.NodeInfo,
	_ framework.Snapshot) *framework.Status {
	for _, node := range nodes {
		for i := range node.Node.Spec.Taints {
			if node.Node.Spec.Taints[i].Effect == corev1.TaintEffectPreferNoSchedule {
				return nil
			}
		}
	}
	return skip
}

// Score implements framework.ScorePlugin.
func (TaintToleration) Score(_ *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) int64 {
	var intolerable int64
	taints := node.Node.Spec.Taints
	for i := range taints {
		if taints[i].Effect == corev1.TaintEffectPreferNoSchedule && !tolerates(pod.Pod.Spec.Tolerations, &taints[i]) {
			intolerable++
		}
	}
	return intolerable
}

// NormalizeScore implements framework.ScoreNormalizer.
func (TaintToleration) NormalizeScore(_ *framework.CycleState, _ *framework.PodInfo, _ []*framework.NodeInfo,
	scores []int64) {
	normalize(scores, true)
}

// EventsToRegister implements framework.EnqueueExtensions.
func (p TaintToleration) EventsToRegister() []framework.EventHint {
	return []framework.EventHint{
		{Event: event(framework.Node, framework.Add|framework.UpdateNodeTaint),
			Helps: framework.NodeHint(func(pod *framework.PodInfo, node *framework.NodeInfo) bool {
				return p.Filter(nil, pod, node).OK()
			})},
		{Event: event(framework.UnscheduledPod, framework.UpdatePodToleration)},
	}
}

// untolerated returns a taint that keeps the pod off the node, or nil.
func untolerated(pod *corev1.Pod, node *corev1.Node) *corev1.Taint {
	taints := node.Spec.Taints
	for i := range taints {
		if taints[i].Effect != corev1.TaintEffectPreferNoSchedule && !tolerates(pod.Spec.Tolerations, &taints[i]) {
			return &taints[i]
		}
	}
	return nil
}

func tolerates(tolerations []corev1.Toleration, taint *corev1.Taint) bool {
	for i := range tolerations {
		// The comparison operators Gt and Lt are behind a feature gate that is off by default.
		if tolerations[i].ToleratesTaint(klog.Background(), taint, false) {
			return true
		}
	}
	return false
}
