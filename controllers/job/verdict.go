package job

import (
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers/controller"
)

func (l *look) newCondition(t batchv1.JobConditionType, reason, message string) *batchv1.JobCondition {
	now := metav1.NewTime(l.now)
	return &batchv1.JobCondition{
		Type: t, Status: corev1.ConditionTrue, LastProbeTime: now, LastTransitionTime: now, Reason: reason, Message: message,
	}
}

// judge decides whether the Job is over. The verdict is FailureTarget or SuccessCriteriaMet; once
// it is in the status it stands. Failed or Complete follow when no pod is left.
func (l *look) judge() {
	for _, t := range []batchv1.JobConditionType{batchv1.JobFailureTarget, batchv1.JobSuccessCriteriaMet} {
		if c := condition(l.job, t); c != nil {
			l.verdict = c.DeepCopy()
			return
		}
	}
	fail := func(reason, message string) { l.verdict = l.newCondition(batchv1.JobFailureTarget, reason, message) }
	spec := &l.job.Spec
	if message := l.failJobMessage(); message != "" {
		fail(batchv1.JobReasonPodFailurePolicy, message)
		return
	}
	switch {
	case spec.BackoffLimit != nil && l.failed > *spec.BackoffLimit, l.restartsExceedLimit():
		fail(batchv1.JobReasonBackoffLimitExceeded, "Job has reached the specified backoff limit")
	case l.pastDeadline():
		fail(batchv1.JobReasonDeadlineExceeded, "Job was active longer than specified deadline")
	case spec.MaxFailedIndexes != nil && l.lost.total() > int(*spec.MaxFailedIndexes):
		fail(batchv1.JobReasonMaxFailedIndexesExceeded, "Job has exceeded the specified maximal number of failed indexes")
	case l.lost.total() > 0 && l.lost.total()+l.done.total() >= l.completions():
		fail(batchv1.JobReasonFailedIndexes, "Job has failed indexes")
	default:
		if message := l.successPolicyMessage(); message != "" {
			l.verdict = l.newCondition(batchv1.JobSuccessCriteriaMet, batchv1.JobReasonSuccessPolicy, message)
		}
	}
}

// failJobMessage tells of the first failed pod that meets a rule with action FailJob.
func (l *look) failJobMessage() string {
	if l.job.Spec.PodFailurePolicy == nil {
		return ""
	}
	for _, pod := range l.pods {
		if l.isFailed(pod) {
			if action, message := l.policyFor(pod); action == batchv1.PodFailurePolicyActionFailJob {
				return message
			}
		}
	}
	return ""
}

// restartsExceedLimit counts the restarts of containers in place, where the pods' policy is
// OnFailure: no pod fails then.
func (l *look) restartsExceedLimit() bool {
	limit := l.job.Spec.BackoffLimit
	if l.job.Spec.Template.Spec.RestartPolicy != corev1.RestartPolicyOnFailure || limit == nil {
		return false
	}
	restarts := 0
	for _, pod := range l.pods {
		if pod.Status.Phase != corev1.PodRunning && pod.Status.Phase != corev1.PodPending {
			continue
		}
		for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
			restarts += int(s.RestartCount)
		}
	}
	if *limit == 0 {
		return restarts > 0
	}
	return restarts >= int(*limit)
}

// pastDeadline says whether the Job has been active for too long, and comes back when it will have been.
func (l *look) pastDeadline() bool {
	seconds, start := l.job.Spec.ActiveDeadlineSeconds, l.job.Status.StartTime
	if seconds == nil || start == nil || suspended(l.job) || l.resumes() {
		return false
	}
	left := start.Add(controller.Seconds(*seconds)).Sub(l.now)
	if left > 0 {
		l.EnqueueAfter(l.key, left)
	}
	return left <= 0
}

// resumes says whether this look is the first after a suspension, which starts the deadline anew.
func (l *look) resumes() bool {
	return !suspended(l.job) && condition(l.job, batchv1.JobSuspended) != nil
}

// successPolicyMessage tells of the first rule of the success policy that is met.
func (l *look) successPolicyMessage() string {
	if l.job.Spec.SuccessPolicy == nil || !indexed(l.job) {
		return ""
	}
	for i, rule := range l.job.Spec.SuccessPolicy.Rules {
		have, want := l.done.total(), 0
		if rule.SucceededIndexes != nil {
			of := parseIntervals(*rule.SucceededIndexes, l.completions())
			have, want = l.done.common(of), of.total()
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

// judgeCompletion decides, after scaling, whether all the work is done. A Job without
// completions is a queue whose pods know when it is empty: the first success says that it is.
func (l *look) judgeCompletion() {
	if len(l.active) > 0 {
		return
	}
	complete := l.succeeded > 0
	if l.job.Spec.Completions != nil {
		complete = l.succeeded >= *l.job.Spec.Completions
	}
	if complete {
		l.verdict = l.newCondition(batchv1.JobSuccessCriteriaMet, batchv1.JobReasonCompletionsReached, "Reached expected number of succeeded pods")
	}
}

// suspension tells of a Job that is suspended, and of one that goes on.
func (l *look) suspension() {
	if l.verdict != nil || l.job.DeletionTimestamp != nil {
		return
	}
	switch {
	case suspended(l.job):
		if condition(l.job, batchv1.JobSuspended) == nil {
			l.setSuspended(corev1.ConditionTrue, "JobSuspended", "Job suspended")
			l.recorder.Event(l.job, corev1.EventTypeNormal, "Suspended", "Job suspended")
			// It starts anew when it goes on, and until then may be given other Nodes (KEP-5440).
			l.job.Status.StartTime = nil
		}
	case l.resumes():
		l.setSuspended(corev1.ConditionFalse, "JobResumed", "Job resumed")
		l.recorder.Event(l.job, corev1.EventTypeNormal, "Resumed", "Job resumed")
		l.job.Status.StartTime = new(metav1.NewTime(l.now))
		if seconds := l.job.Spec.ActiveDeadlineSeconds; seconds != nil {
			l.EnqueueAfter(l.key, controller.Seconds(*seconds))
		}
	}
}

func (l *look) setSuspended(status corev1.ConditionStatus, reason, message string) {
	c := l.newCondition(batchv1.JobSuspended, reason, message)
	c.Status = status
	conditions := &l.job.Status.Conditions
	*conditions = slices.DeleteFunc(*conditions, func(c batchv1.JobCondition) bool { return c.Type == batchv1.JobSuspended })
	*conditions = append(*conditions, *c)
}
