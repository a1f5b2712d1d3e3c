package plugins

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// NodeResourcesFit refuses nodes that have less left than the pod requests, and prefers those
// that would have the largest share left (LeastAllocated).
type NodeResourcesFit struct{}

// The refusals that every cluster sees are made once.
var (
	tooManyPods        = framework.NewStatus("NodeResourcesFit", framework.Unschedulable, "Too many pods")
	insufficientCPU    = framework.NewStatus("NodeResourcesFit", framework.Unschedulable, "Insufficient cpu")
	insufficientMemory = framework.NewStatus("NodeResourcesFit", framework.Unschedulable, "Insufficient memory")
)

// Name implements framework.Plugin.
func (NodeResourcesFit) Name() string { return "NodeResourcesFit" }

// Filter implements framework.FilterPlugin.
func (p NodeResourcesFit) Filter(_ *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	return p.fits(&pod.Requests, &node.Requested, &node.Allocatable)
}

// fits checks want against what is left of have. A resource that the pod does not want is not
// looked at, even where the node is overcommitted; only the pod slot is always wanted.
func (p NodeResourcesFit) fits(want, used, have *framework.Resource) *framework.Status {
	lacks := func(want, used, have int64) bool { return want > 0 && want > have-used }
	pods := lacks(want.Pods, used.Pods, have.Pods)
	cpu := lacks(want.MilliCPU, used.MilliCPU, have.MilliCPU)
	memory := lacks(want.Memory, used.Memory, have.Memory)
	storage := lacks(want.EphemeralStorage, used.EphemeralStorage, have.EphemeralStorage)
	var scalars []corev1.ResourceName
	for name, amount := range want.Scalar {
		if lacks(amount, used.Scalar[name], have.Scalar[name]) {
			scalars = append(scalars, name)
		}
	}
	switch {
	case !pods && !cpu && !memory && !storage && len(scalars) == 0:
		return nil
	case pods && !cpu && !memory && !storage && len(scalars) == 0:
		return tooManyPods
	case cpu && !pods && !memory && !storage && len(scalars) == 0:
		return insufficientCPU
	case memory && !pods && !cpu && !storage && len(scalars) == 0:
		return insufficientMemory
	}
	var reasons []string
	if pods {
		reasons = append(reasons, "Too many pods")
	}
	if cpu {
		reasons = append(reasons, "Insufficient cpu")
	}
	if memory {
		reasons = append(reasons, "Insufficient memory")
	}
	if storage {
		reasons = append(reasons, "Insufficient ephemeral-storage")
	}
	slices.Sort(scalars)
	for _, name := range scalars {
		reasons = append(reasons, "Insufficient "+string(name))
	}
	return framework.NewStatus(p.Name(), framework.Unschedulable, reasons...)
}

// Score implements framework.ScorePlugin: the mean share of CPU and memory that would be left.
func (NodeResourcesFit) Score(_ *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) int64 {
	cpu, cpuOK := left(pod.Scored.MilliCPU+node.Scored.MilliCPU, node.Allocatable.MilliCPU)
	memory, memoryOK := left(pod.Scored.Memory+node.Scored.Memory, node.Allocatable.Memory)
	switch {
	case cpuOK && memoryOK:
		return (cpu + memory) / 2
	case cpuOK:
		return cpu
	default:
		return memory
	}
}

// left is the share of have that used leaves, 0 to MaxNodeScore; false where there is none to share.
func left(used, have int64) (int64, bool) {
	if have <= 0 {
		return 0, false
	}
	if used >= have {
		return 0, true
	}
	return int64(float64(have-used) * float64(framework.MaxNodeScore) / float64(have)), true
}

// EventsToRegister implements framework.EventsPlugin. A node helps that would hold the pod if it were empty.
func (p NodeResourcesFit) EventsToRegister() []framework.EventHint {
	helps := func(pod *framework.PodInfo, node *framework.NodeInfo) bool {
		return p.fits(&pod.Requests, &framework.Resource{}, &node.Allocatable).OK()
	}
	return []framework.EventHint{
		{Event: framework.NodeAdded, Helps: helps},
		{Event: framework.NodeUpdated, Helps: helps},
		{Event: framework.AssignedPodDeleted},
		{Event: framework.AssignedPodUpdated}, // resized in place to less
		{Event: framework.PodUpdated},
	}
}
