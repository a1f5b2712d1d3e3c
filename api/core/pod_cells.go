package core

import (
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/kit/table"
	"github.com/coxswain-dev/coxswain/api/podspec"
)

// nodeUnreachable is the status reason of a pod whose node has stopped responding.
const nodeUnreachable = "NodeLost"

// podSummary collects the columns that describe a pod's containers.
type podSummary struct {
	reason       string
	ready, total int
	restarts     int
	lastRestart  metav1.Time
}

func podCells(p *corev1.Pod) []any {
	s := summarize(p)
	var restarts any = strconv.Itoa(s.restarts)
	if s.restarts != 0 && !s.lastRestart.IsZero() {
		ago := api.Since(s.lastRestart.Time)
		restarts = api.Elapsed(func(now time.Time) string { return fmt.Sprintf("%d (%s ago)", s.restarts, ago(now)) })
	}
	ip := p.Status.PodIP
	if len(p.Status.PodIPs) > 0 {
		ip = p.Status.PodIPs[0].IP
	}
	return []any{
		p.Name,
		fmt.Sprintf("%d/%d", s.ready, s.total),
		s.reason,
		restarts,
		table.AgeOf(p.CreationTimestamp),
		table.OrNone(ip), table.OrNone(p.Spec.NodeName), table.OrNone(p.Status.NominatedNodeName), gatesCell(p),
	}
}

// podRowConditions marks finished pods, which a client may hide.
func podRowConditions(obj api.Object) []metav1.TableRowCondition {
	done := metav1.TableRowCondition{Type: metav1.RowCompleted, Status: metav1.ConditionTrue,
		Reason: string(obj.(*corev1.Pod).Status.Phase)}
	switch obj.(*corev1.Pod).Status.Phase {
	case corev1.PodSucceeded:
		done.Message = "The pod has completed successfully."
	case corev1.PodFailed:
		done.Message = "The pod failed."
	default:
		return nil
	}
	return []metav1.TableRowCondition{done}
}

func summarize(p *corev1.Pod) podSummary {
	s := podSummary{reason: string(p.Status.Phase), total: len(p.Spec.Containers)}
	if p.Status.Reason != "" {
		s.reason = p.Status.Reason
	}
	if c := condition(p, corev1.PodScheduled); c != nil && c.Reason == corev1.PodReasonSchedulingGated {
		s.reason = corev1.PodReasonSchedulingGated
	}
	sidecars := map[string]bool{}
	for i := range p.Spec.InitContainers {
		if podspec.IsSidecar(&p.Spec.InitContainers[i]) {
			sidecars[p.Spec.InitContainers[i].Name] = true
			s.total++
		}
	}
	ofSidecars := podSummary{}
	initializing := s.addInit(p, sidecars, &ofSidecars)
	if c := condition(p, corev1.PodInitialized); !initializing || (c != nil && c.Status == corev1.ConditionTrue) {
		s.restarts, s.lastRestart = ofSidecars.restarts, ofSidecars.lastRestart
		s.addMain(p)
	}
	switch {
	case p.DeletionTimestamp == nil:
	case p.Status.Reason == nodeUnreachable:
		s.reason = "Unknown"
	case p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed:
		s.reason = "Terminating"
	}
	return s
}

// addInit walks the init containers up to the first unfinished one, and reports whether the pod is still initializing.
// It adds the restarts of sidecars to ofSidecars, since only these count after initialization.
func (s *podSummary) addInit(p *corev1.Pod, sidecars map[string]bool, ofSidecars *podSummary) bool {
	for i, c := range p.Status.InitContainerStatuses {
		s.addRestarts(c)
		terminated, waiting := c.State.Terminated, c.State.Waiting
		if sidecars[c.Name] {
			ofSidecars.addRestarts(c)
		}
		switch {
		case terminated != nil && terminated.ExitCode == 0:
			continue
		case sidecars[c.Name] && c.Started != nil && *c.Started:
			if c.Ready {
				s.ready++
			}
			continue
		case terminated != nil:
			s.reason = "Init:" + terminationReason(terminated)
		case waiting != nil && waiting.Reason != "" && waiting.Reason != "PodInitializing":
			s.reason = "Init:" + waiting.Reason
		default:
			s.reason = fmt.Sprintf("Init:%d/%d", i, len(p.Spec.InitContainers))
		}
		return true
	}
	return false
}

// addMain walks the main containers from last to first, so that the reason of the first one wins.
func (s *podSummary) addMain(p *corev1.Pod) {
	running, failure := false, ""
	for i := len(p.Status.ContainerStatuses) - 1; i >= 0; i-- {
		c := p.Status.ContainerStatuses[i]
		s.addRestarts(c)
		switch {
		case c.State.Waiting != nil && c.State.Waiting.Reason != "":
			s.reason = c.State.Waiting.Reason
		case c.State.Terminated != nil:
			s.reason = terminationReason(c.State.Terminated)
			if c.State.Terminated.ExitCode != 0 {
				failure = s.reason
			}
		case c.Ready && c.State.Running != nil:
			running = true
			s.ready++
		}
	}
	// One container has ended, but another runs or has failed, so the pod is not completed.
	c := condition(p, corev1.PodReady)
	switch {
	case s.reason != "Completed":
	case running && c != nil && c.Status == corev1.ConditionTrue:
		s.reason = string(corev1.PodRunning)
	case failure != "":
		s.reason = failure
	case running:
		s.reason = "NotReady"
	}
}

func (s *podSummary) addRestarts(c corev1.ContainerStatus) {
	s.restarts += int(c.RestartCount)
	if t := c.LastTerminationState.Terminated; t != nil && s.lastRestart.Before(&t.FinishedAt) {
		s.lastRestart = t.FinishedAt
	}
}

func terminationReason(t *corev1.ContainerStateTerminated) string {
	switch {
	case t.Reason != "":
		return t.Reason
	case t.Signal != 0:
		return fmt.Sprintf("Signal:%d", t.Signal)
	default:
		return fmt.Sprintf("ExitCode:%d", t.ExitCode)
	}
}

// gatesCell counts the readiness gates that are true.
func gatesCell(p *corev1.Pod) string {
	if len(p.Spec.ReadinessGates) == 0 {
		return table.None
	}
	open := 0
	for _, gate := range p.Spec.ReadinessGates {
		if c := condition(p, gate.ConditionType); c != nil && c.Status == corev1.ConditionTrue {
			open++
		}
	}
	return fmt.Sprintf("%d/%d", open, len(p.Spec.ReadinessGates))
}

func condition(p *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == kind {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}
