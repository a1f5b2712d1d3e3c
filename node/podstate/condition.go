package podstate

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/node/runtime"
)

// OwnConditions are the conditions that the kubelet owns (kubetypes.PodConditionByKubelet), and PodScheduled, which
// is true of every pod that a node sees.
var OwnConditions = []corev1.PodConditionType{
	corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady,
	corev1.PodScheduled,
}

// conditions returns the pod's conditions in the kubelet's order.
func (p *Pod) conditions(s *corev1.PodStatus, previous []corev1.PodCondition, now metav1.Time) []corev1.PodCondition {
	own := []corev1.PodCondition{
		{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionFalse},
		p.initializedCondition(s),
		{Type: corev1.PodReady},
		p.containersReady(s),
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
	}
	if len(p.addresses) > 0 && !p.Stopped() {
		own[0].Status = corev1.ConditionTrue
	}
	own[2] = p.readyCondition(own[3])
	if p.disruption != nil && p.Stopped() {
		own = append(own, *p.disruption)
	}
	for i := range own {
		own[i].ObservedGeneration = p.pod.Generation
	}
	own = append(own, p.resizeConditions()...)
	for i := range own {
		own[i].LastTransitionTime = now
		if old := Condition(previous, own[i].Type); old != nil && old.Status == own[i].Status {
			own[i].LastTransitionTime = old.LastTransitionTime
		}
	}
	for _, c := range p.pod.Status.Conditions {
		if Condition(own, c.Type) == nil && !IsResizeCondition(c.Type) {
			own = append(own, c)
		}
	}
	return own
}

// Own returns a status without the conditions that others write: the cache may show an older state of those, which
// the agent would write back.
func (p *Pod) Own(s *corev1.PodStatus) *corev1.PodStatus {
	own := *s
	own.Conditions = slices.DeleteFunc(slices.Clone(s.Conditions), func(c corev1.PodCondition) bool {
		if c.Type == corev1.DisruptionTarget {
			return p.disruption == nil || !p.Stopped()
		}
		return !slices.Contains(OwnConditions, c.Type) && !IsResizeCondition(c.Type)
	})
	return &own
}

func (p *Pod) initializedCondition(s *corev1.PodStatus) corev1.PodCondition {
	c := corev1.PodCondition{Type: corev1.PodInitialized, Status: corev1.ConditionTrue}
	if s.Phase == corev1.PodSucceeded {
		c.Reason = "PodCompleted"
		return c
	}
	if p.initialized || len(p.init) == 0 {
		return c
	}
	var names []string
	for i := range s.InitContainerStatuses {
		if !s.InitContainerStatuses[i].Ready {
			names = append(names, s.InitContainerStatuses[i].Name)
		}
	}
	c.Status, c.Reason = corev1.ConditionFalse, "ContainersNotInitialized"
	c.Message = "containers with incomplete status: [" + strings.Join(names, " ") + "]"
	return c
}

func (p *Pod) containersReady(s *corev1.PodStatus) corev1.PodCondition {
	c := corev1.PodCondition{Type: corev1.ContainersReady, Status: corev1.ConditionFalse}
	switch s.Phase {
	case corev1.PodSucceeded:
		c.Reason = "PodCompleted"
		return c
	case corev1.PodFailed:
		c.Reason = "PodFailed"
		return c
	}
	var unready []string
	for i, run := range p.init {
		if runtime.IsSidecar(run.spec) && !s.InitContainerStatuses[i].Ready {
			unready = append(unready, run.spec.Name)
		}
	}
	for i := range s.ContainerStatuses {
		if !s.ContainerStatuses[i].Ready {
			unready = append(unready, s.ContainerStatuses[i].Name)
		}
	}
	if len(unready) > 0 {
		c.Reason = "ContainersNotReady"
		c.Message = "containers with unready status: [" + strings.Join(unready, " ") + "]"
		return c
	}
	c.Status = corev1.ConditionTrue
	return c
}

// readyCondition combines the readiness of the containers with the pod's readiness gates.
func (p *Pod) readyCondition(containers corev1.PodCondition) corev1.PodCondition {
	c := containers
	c.Type = corev1.PodReady
	if c.Status != corev1.ConditionTrue {
		return c
	}
	var open []string
	for _, gate := range p.pod.Spec.ReadinessGates {
		condition := Condition(p.pod.Status.Conditions, gate.ConditionType)
		switch {
		case condition == nil:
			open = append(open, `corresponding condition of pod readiness gate "`+string(gate.ConditionType)+
				`" does not exist.`)
		case condition.Status != corev1.ConditionTrue:
			open = append(open, `the status of pod readiness gate "`+string(gate.ConditionType)+`" is not "True", but `+
				string(condition.Status))
		}
	}
	if len(open) > 0 {
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, "ReadinessGatesNotReady", strings.Join(open, ", ")
	}
	return c
}

// Condition returns the condition of a type, or nil.
func Condition(conditions []corev1.PodCondition, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range conditions {
		if conditions[i].Type == t {
			return &conditions[i]
		}
	}
	return nil
}
