package job

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// count classifies the pods as active, terminating, succeeded or failed.
func (s *sync) count() {
	noted := s.noted()
	status := &s.job.Status
	succeeded, failed := int(status.Succeeded), int(status.Failed)
	if u := status.UncountedTerminatedPods; u != nil {
		succeeded += len(u.Succeeded)
		failed += len(u.Failed)
	}
	for _, pod := range s.pods {
		switch {
		case controller.PodActive(pod):
			s.active = append(s.active, pod)
		case controller.PodTerminating(pod):
			s.terminating++
		}
		if !tracked(pod) || noted[string(pod.UID)] {
			continue
		}
		switch {
		case pod.Status.Phase == corev1.PodSucceeded:
			s.ended = append(s.ended, pod)
			succeeded++
		case s.isFailed(pod):
			s.ended = append(s.ended, pod)
			if s.countsAsFailure(pod) {
				failed++
			}
		}
	}
	s.succeeded, s.failed = controller.Int32(succeeded), controller.Int32(failed)
	if indexed(s.job) {
		s.countIndexes()
	}
}

// noted returns the uids of the pods in status.uncountedTerminatedPods. They must not be counted again, though
// their finalizers may still be there.
func (s *sync) noted() map[string]bool {
	noted := map[string]bool{}
	if u := s.job.Status.UncountedTerminatedPods; u != nil {
		for _, uid := range slices.Concat(u.Succeeded, u.Failed) {
			noted[string(uid)] = true
		}
	}
	return noted
}

// isFailed reports whether a pod has failed. A pod that is being deleted counts as failed at once, unless
// podReplacementPolicy says to wait until it has ended.
func (s *sync) isFailed(pod *corev1.Pod) bool {
	if pod.Status.Phase == corev1.PodFailed {
		return true
	}
	if replacesOnlyFailed(s.job) {
		return false
	}
	return pod.DeletionTimestamp != nil && pod.Status.Phase != corev1.PodSucceeded
}

func replacesOnlyFailed(j *batchv1.Job) bool {
	return j.Spec.PodReplacementPolicy != nil && *j.Spec.PodReplacementPolicy == batchv1.Failed
}

func (s *sync) countsAsFailure(pod *corev1.Pod) bool {
	action, _ := s.policyFor(pod)
	return action != batchv1.PodFailurePolicyActionIgnore
}

// policyFor returns the action of the first rule of the pod failure policy that matches the failed pod, with a
// message that names the rule; Count if no rule matches.
func (s *sync) policyFor(pod *corev1.Pod) (action batchv1.PodFailurePolicyAction, message string) {
	if s.job.Spec.PodFailurePolicy == nil {
		return batchv1.PodFailurePolicyActionCount, ""
	}
	for i, rule := range s.job.Spec.PodFailurePolicy.Rules {
		match := ""
		switch {
		case rule.OnExitCodes != nil:
			if status := exitMatches(pod, rule.OnExitCodes); status != nil {
				match = fmt.Sprintf("Container %s for pod %s/%s failed with exit code %d", status.Name, pod.Namespace,
					pod.Name, status.State.Terminated.ExitCode)
			}
		default:
			if c := conditionMatches(pod, rule.OnPodConditions); c != nil {
				match = fmt.Sprintf("Pod %s/%s has condition %v", pod.Namespace, pod.Name, c.Type)
			}
		}
		if match != "" {
			return rule.Action, fmt.Sprintf("%s matching %v rule at index %d", match, rule.Action, i)
		}
	}
	return batchv1.PodFailurePolicyActionCount, ""
}

// exitMatches returns the first container with an exit code, other than 0, that matches the rule.
func exitMatches(pod *corev1.Pod, rule *batchv1.PodFailurePolicyOnExitCodesRequirement) *corev1.ContainerStatus {
	all := slices.Concat(pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses)
	for i := range all {
		status := &all[i]
		if status.State.Terminated == nil || status.State.Terminated.ExitCode == 0 ||
			rule.ContainerName != nil && *rule.ContainerName != status.Name {
			continue
		}
		in := slices.Contains(rule.Values, status.State.Terminated.ExitCode)
		if in == (rule.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn) {
			return status
		}
	}
	return nil
}

func conditionMatches(pod *corev1.Pod, patterns []batchv1.PodFailurePolicyOnPodConditionsPattern) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		c := &pod.Status.Conditions[i]
		for _, p := range patterns {
			if p.Type == c.Type && p.Status == c.Status {
				return c
			}
		}
	}
	return nil
}

// endOf returns when a pod ended, as precisely as its status shows.
func endOf(pod *corev1.Pod) time.Time {
	var end time.Time
	for _, status := range pod.Status.ContainerStatuses {
		if t := status.State.Terminated; t != nil && t.FinishedAt.After(end) {
			end = t.FinishedAt.Time
		}
	}
	if !end.IsZero() {
		return end
	}
	if pod.DeletionTimestamp != nil {
		grace := time.Duration(0)
		if seconds := pod.DeletionGracePeriodSeconds; seconds != nil {
			grace = controller.Seconds(*seconds)
		}
		return pod.DeletionTimestamp.Add(-grace)
	}
	if c := controller.PodCondition(pod, corev1.PodReady); c != nil && !c.LastTransitionTime.IsZero() {
		return c.LastTransitionTime.Time
	}
	return pod.CreationTimestamp.Time
}

// leastUseful orders active pods by the work that is lost with them, least first.
func leastUseful(a, b *corev1.Pod) int {
	rank := func(p *corev1.Pod) int {
		switch {
		case p.Spec.NodeName == "":
			return 0
		case p.Status.Phase != corev1.PodRunning:
			return 1
		case !controller.PodReady(p):
			return 2
		}
		return 3
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), b.CreationTimestamp.Compare(a.CreationTimestamp.Time),
		cmp.Compare(a.Name, b.Name))
}
