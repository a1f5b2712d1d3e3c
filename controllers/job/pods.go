package job

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/controllers/controller"
)

// count sorts the pods into what they count for.
func (l *look) count() {
	noted := l.noted()
	status := &l.job.Status
	succeeded, failed := int(status.Succeeded), int(status.Failed)
	if u := status.UncountedTerminatedPods; u != nil {
		succeeded += len(u.Succeeded)
		failed += len(u.Failed)
	}
	for _, pod := range l.pods {
		switch {
		case controller.PodActive(pod):
			l.active = append(l.active, pod)
		case controller.PodTerminating(pod):
			l.terminating++
		}
		if !tracked(pod) || noted[string(pod.UID)] {
			continue
		}
		switch {
		case pod.Status.Phase == corev1.PodSucceeded:
			l.ended = append(l.ended, pod)
			succeeded++
		case l.isFailed(pod):
			l.ended = append(l.ended, pod)
			if l.countsAsFailure(pod) {
				failed++
			}
		}
	}
	l.succeeded, l.failed = controller.Int32(succeeded), controller.Int32(failed)
	if indexed(l.job) {
		l.countIndexes()
	}
}

// noted are the pods that the status names: they have been counted and may have a finalizer still.
func (l *look) noted() map[string]bool {
	noted := map[string]bool{}
	if u := l.job.Status.UncountedTerminatedPods; u != nil {
		for _, uid := range slices.Concat(u.Succeeded, u.Failed) {
			noted[string(uid)] = true
		}
	}
	return noted
}

// isFailed says whether a pod has failed. One that is being deleted will not come to a good end:
// it has failed already, unless its replacement is to wait until it has really ended.
func (l *look) isFailed(pod *corev1.Pod) bool {
	if pod.Status.Phase == corev1.PodFailed {
		return true
	}
	if replacesOnlyFailed(l.job) {
		return false
	}
	return pod.DeletionTimestamp != nil && pod.Status.Phase != corev1.PodSucceeded
}

func replacesOnlyFailed(j *batchv1.Job) bool {
	return j.Spec.PodReplacementPolicy != nil && *j.Spec.PodReplacementPolicy == batchv1.Failed
}

func (l *look) countsAsFailure(pod *corev1.Pod) bool {
	action, _ := l.policyFor(pod)
	return action != batchv1.PodFailurePolicyActionIgnore
}

// policyFor is the action of the first rule of the pod failure policy that the failed pod
// meets, or Count; message tells which rule it was.
func (l *look) policyFor(pod *corev1.Pod) (action batchv1.PodFailurePolicyAction, message string) {
	if l.job.Spec.PodFailurePolicy == nil {
		return batchv1.PodFailurePolicyActionCount, ""
	}
	for i, rule := range l.job.Spec.PodFailurePolicy.Rules {
		met := ""
		switch {
		case rule.OnExitCodes != nil:
			if s := exitMatches(pod, rule.OnExitCodes); s != nil {
				met = fmt.Sprintf("Container %s for pod %s/%s failed with exit code %d", s.Name, pod.Namespace, pod.Name, s.State.Terminated.ExitCode)
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
		s := &all[i]
		if s.State.Terminated == nil || s.State.Terminated.ExitCode == 0 ||
			rule.ContainerName != nil && *rule.ContainerName != s.Name {
			continue
		}
		in := slices.Contains(rule.Values, s.State.Terminated.ExitCode)
		if in == (rule.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn) {
			return s
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

// endOf is when a pod ended, as nearly as can be told.
func endOf(pod *corev1.Pod) time.Time {
	var end time.Time
	for _, s := range pod.Status.ContainerStatuses {
		if t := s.State.Terminated; t != nil && t.FinishedAt.After(end) {
			end = t.FinishedAt.Time
		}
	}
	if !end.IsZero() {
		return end
	}
	if pod.DeletionTimestamp != nil {
		grace := time.Duration(0)
		if s := pod.DeletionGracePeriodSeconds; s != nil {
			grace = controller.Seconds(*s)
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
	return cmp.Or(cmp.Compare(rank(a), rank(b)), b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}
