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

// count sorts the pods into what they count for.
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

// noted are the pods that the status names: they have been counted and may have a finalizer still.
func (s *sync) noted() map[string]bool {
	noted := map[string]bool{}
	if u := s.job.Status.UncountedTerminatedPods; u != nil {
		for _, uid := range slices.Concat(u.Succeeded, u.Failed) {
			noted[string(uid)] = true
		}
	}
	return noted
}

// isFailed reports whether a pod has failed. One that is being deleted will not come to a good end:
// it has failed already, unless its replacement is to wait until it has really ended.
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

// policyFor is the action of the first rule of the pod failure policy that the failed pod
// meets, or Count; message names the rule.
func (s *sync) policyFor(pod *corev1.Pod) (action batchv1.PodFailurePolicyAction, message string) {
	if s.job.Spec.PodFailurePolicy == nil {
		return batchv1.PodFailurePolicyActionCount, ""
	}
	for i, rule := range s.job.Spec.PodFailurePolicy.Rules {
		met := ""
		switch {
		case rule.OnExitCodes != nil:
			if status := exitMatches(pod, rule.OnExitCodes); status != nil {
				met = fmt.Sprintf("Container %s for pod %s/%s failed with exit code %d", status.Name, pod.Namespace,
					pod.Name, status.State.Terminated.ExitCode)
			}
		default:
			if c := conditionMatches(pod, rule.OnPodConditions); c != nil {
				met = fmt.Sprintf("Pod %s/%s has condition %v", pod.Namespace, pod.Name, c.Type)
			}
		}
		if met != "" {
			return rule.Action, fmt.Sprintf("%s matching %v rule at index %d", met, rule.Action, i)
		}
	}
	return batchv1.PodFailurePolicyActionCount, ""
}

// exitMatches is the first container that ended with a code, other than 0, which the rule means.
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

// endOf is when a pod ended, as precisely as its status shows.
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

// leastUseful orders active pods by how little is lost with them.
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
