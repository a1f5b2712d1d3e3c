package plugins

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// SchedulingGates holds a pod back while spec.schedulingGates is not empty (KEP-3521).
type SchedulingGates struct{}

// Name implements framework.Plugin.
func (SchedulingGates) Name() string { return "SchedulingGates" }

// PreEnqueue implements framework.PreEnqueuePlugin.
func (p SchedulingGates) PreEnqueue(pod *corev1.Pod) *framework.Status {
	if len(pod.Spec.SchedulingGates) == 0 {
		return nil
	}
	names := make([]string, len(pod.Spec.SchedulingGates))
	for i, gate := range pod.Spec.SchedulingGates {
		names[i] = gate.Name
	}
	return framework.NewStatus(p.Name(), framework.UnschedulableAndUnresolvable,
		fmt.Sprintf("waiting for scheduling gates: [%s]", strings.Join(names, " ")))
}

// EventsToRegister implements framework.EnqueueExtensions.
func (SchedulingGates) EventsToRegister() []framework.EventHint {
	return []framework.EventHint{{Event: event(framework.UnscheduledPod, framework.UpdatePodSchedulingGatesEliminated)}}
}
