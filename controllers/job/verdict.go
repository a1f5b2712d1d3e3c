package job

import (
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

func (s *sync) newCondition(t batchv1.JobConditionType, reason, message string) *batchv1.JobCondition {
	now := metav1.NewTime(s.now)
	return &batchv1.JobCondition{
		Type: t, Status: corev1.ConditionTrue, LastProbeTime: now, LastTransitionTime: now, Reason: reason,
		Message: message,
	}
}

// judge decides whether the Job is over. The verdict is FailureTarget or SuccessCriteriaMet, and final once it
// is in the status. Failed or Complete follows when no pod is left.
func (s *sync) judge() {
	for _, t := range []batchv1.JobConditionType{batchv1.JobFailureTarget, batchv1.JobSuccessCriteriaMet} {
		if c := condition(s.job, t); c != nil {
			s.verdict = c.DeepCopy()
			return
		}
	}
	fail := func(reason, message string) { s.verdict = s.newCondition(batchv1.JobFailureTarget, reason, message) }
	spec := &s.job.Spec
	if message := s.failJobMessage(); message != "" {
		fail(batchv1.JobReasonPodFailurePolicy, message)
		return
	}
	switch {
	case spec.BackoffLimit != nil && s.failed > *spec.BackoffLimit, s.restartsExceedLimit():
		fail(batchv1.JobReasonBackoffLimitExceeded, "Job has reached the specified backoff limit")
	case s.pastDeadline():
		fail(batchv1.JobReasonDeadlineExceeded, "Job was active longer than specified deadline")
	case spec.MaxFailedIndexes != nil && s.lost.total() > int(*spec.MaxFailedIndexes):
		fail(batchv1.JobReasonMaxFailedIndexesExceeded,
			"Job has exceeded the specified maximal number of failed indexes")
	case s.lost.total() > 0 && s.lost.total()+s.done.total() >= s.completions():
		fail(batchv1.JobReasonFailedIndexes, "Job has failed indexes")
	default:
		if message := s.successPolicyMessage(); message != "" {
			s.verdict = s.newCondition(batchv1.JobSuccessCriteriaMet, batchv1.JobReasonSuccessPolicy, message)
		}
	}
}

// failJobMessage returns the message of the first failed pod that matches a rule with action FailJob.
func (s *sync) failJobMessage() string {
	if s.job.Spec.PodFailurePolicy == nil {
		return ""
	}
	for _, pod := range s.pods {
		if s.isFailed(pod) {
			if action, message := s.policyFor(pod); action == batchv1.PodFailurePolicyActionFailJob {
				return message
			}
		}
	}
	return ""
}

// restartsExceedLimit applies backoffLimit to the restarts of containers, if the pods' restartPolicy is
// OnFailure: their pods do not fail.
func (s *sync) restartsExceedLimit() bool {
	limit := s.job.Spec.BackoffLimit
	if s.job.Spec.Template.Spec.RestartPolicy != corev1.RestartPolicyOnFailure || limit == nil {
		return false
	}
	restarts := 0
	for _, pod := range s.pods {
		if pod.Status.Phase != corev1.PodRunning && pod.Status.Phase != corev1.PodPending {
			continue
		}
		for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
			restarts += int(status.RestartCount)
		}
	}
	if *limit == 0 {
		return restarts > 0
	}
	return restarts >= int(*limit)
}

// pastDeadline reports whether the Job has been active for too long. Otherwise it enqueues the Job for its
// deadline.
func (s *sync) pastDeadline() bool {
	seconds, start := s.job.Spec.ActiveDeadlineSeconds, s.job.Status.StartTime
	if seconds == nil || start == nil || suspended(s.job) || s.resumes() {
		return false
	}
	deadline := start.Add(controller.Seconds(*seconds))
	if deadline.After(s.now) {
		s.EnqueueAt(s.key, deadline)
		return false
	}
	return true
}

// resumes reports whether this sync is the first after a suspension. The deadline then starts again.
func (s *sync) resumes() bool {
	return !suspended(s.job) && condition(s.job, batchv1.JobSuspended) != nil
}

// successPolicyMessage returns the message of the first matching rule of the success policy.
func (s *sync) successPolicyMessage() string {
	if s.job.Spec.SuccessPolicy == nil || !indexed(s.job) {
		return ""
	}
	for i, rule := range s.job.Spec.SuccessPolicy.Rules {
		have, want := s.done.total(), 0
		if rule.SucceededIndexes != nil {
			required := parseIntervals(*rule.SucceededIndexes, s.completions())
			have, want = s.done.common(required), required.total()
		}
		if rule.SucceededCount != nil {
			want = int(*rule.SucceededCount)
		}
		if have >= want {
			return fmt.Sprintf("Matched rules at index %d", i)
		}
	}
	return ""
}

// judgeCompletion decides, after scaling, whether all work is done. A Job without completions is a work queue,
// and its pods know when it is empty: the first success means that it is.
func (s *sync) judgeCompletion() {
	if len(s.active) > 0 {
		return
	}
	complete := s.succeeded > 0
	if s.job.Spec.Completions != nil {
		complete = s.succeeded >= *s.job.Spec.Completions
	}
	if complete {
		s.verdict = s.newCondition(batchv1.JobSuccessCriteriaMet, batchv1.JobReasonCompletionsReached,
			"Reached expected number of succeeded pods")
	}
}

// suspension records in the status that the Job was suspended or resumed.
func (s *sync) suspension() {
	if s.verdict != nil || s.job.DeletionTimestamp != nil {
		return
	}
	switch {
	case suspended(s.job):
		if condition(s.job, batchv1.JobSuspended) == nil {
			s.setSuspended(corev1.ConditionTrue, "JobSuspended", "Job suspended")
			s.recorder.Event(s.job, corev1.EventTypeNormal, "Suspended", "Job suspended")
			// startTime is set again on resumption. Until then the pods' scheduling directives may change
			// (KEP-5440).
			s.job.Status.StartTime = nil
		}
	case s.resumes():
		s.setSuspended(corev1.ConditionFalse, "JobResumed", "Job resumed")
		s.recorder.Event(s.job, corev1.EventTypeNormal, "Resumed", "Job resumed")
		s.job.Status.StartTime = new(metav1.NewTime(s.now))
		if seconds := s.job.Spec.ActiveDeadlineSeconds; seconds != nil {
			s.EnqueueAt(s.key, s.now.Add(controller.Seconds(*seconds)))
		}
	}
}

func (s *sync) setSuspended(status corev1.ConditionStatus, reason, message string) {
	c := s.newCondition(batchv1.JobSuspended, reason, message)
	c.Status = status
	conditions := &s.job.Status.Conditions
	*conditions = slices.DeleteFunc(*conditions, func(c batchv1.JobCondition) bool {
		return c.Type == batchv1.JobSuspended
	})
	*conditions = append(*conditions, *c)
}
