package job

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
	"github.com/coxswain-dev/coxswain/internal/series"
)

// maxManagers is the number of external controllers with a series. Clients choose their names.
const maxManagers = 16

// metrics have the names of kube-controller-manager's.
type metrics struct {
	syncDuration                                      func() *prometheus.HistogramVec
	syncs, finished, podsFinished, policy, finalizers func() *prometheus.CounterVec
	indexes, created                                  func() *prometheus.CounterVec
	external                                          *series.Recent[string, prometheus.Counter]
}

func newMetrics(m *controller.Metrics) *metrics {
	counter := func(name, help string, labels ...string) func() *prometheus.CounterVec {
		return m.Counter("job_controller_"+name, help, labels...)
	}
	external := counter("jobs_by_external_controller_total", "The number of Jobs managed by an external controller",
		"controller_name")
	return &metrics{
		syncDuration: m.Histogram("job_controller_job_sync_duration_seconds", "The time it took to sync a job",
			prometheus.ExponentialBuckets(0.004, 2, 15), "completion_mode", "result", "action"),
		syncs: counter("job_syncs_total", "The number of job syncs", "completion_mode", "result", "action"),
		finished: counter("jobs_finished_total", "The number of finished jobs",
			"completion_mode", "result", "reason"),
		podsFinished: counter("job_pods_finished_total", "The number of finished Pods that are fully tracked",
			"completion_mode", "result"),
		policy: counter("pod_failures_handled_by_failure_policy_total", "The number of failed Pods handled by failure "+
			"policy with respect to the failure policy action applied based on the matched rule. Possible values of "+
			"the action label correspond to the possible values for the failure policy rule action.", "action"),
		finalizers: counter("terminated_pods_tracking_finalizer_total", "The number of terminated pods "+
			"(phase=Failed|Succeeded) that have the finalizer batch.kubernetes.io/job-tracking. The event label can "+
			`be "add" or "delete".`, "event"),
		indexes: counter("job_finished_indexes_total", "The number of finished indexes. Possible values for the "+
			`status label are: "succeeded", "failed". Possible values for the backoffLimit label are: "perIndex" and `+
			`"global"`,
			"status", "backoffLimit"),
		created: counter("job_pods_creation_total", "The number of Pods created by the Job controller labelled with a "+
			`reason for the Pod creation. Possible values of the "reason" label are: "new", `+
			`"recreate_terminating_or_failed", "recreate_failed". Possible values of the "status" label are: `+
			`"succeeded", "failed".`, "reason", "status"),
		external: series.NewRecent(maxManagers,
			func(name string) prometheus.Counter { return external().WithLabelValues(name) },
			func(name string) { external().DeleteLabelValues(name) }),
	}
}

const (
	succeeded = "succeeded"
	failed    = "failed"
)

func completionMode(j *batchv1.Job) string {
	if indexed(j) {
		return string(batchv1.IndexedCompletion)
	}
	return string(batchv1.NonIndexedCompletion)
}

// synced counts a sync. action is its effect on the pods.
func (m *metrics) synced(j *batchv1.Job, action string, took time.Duration, err error) {
	result := "success"
	if err != nil {
		result = "error"
	}
	m.syncDuration().WithLabelValues(completionMode(j), result, action).Observe(took.Seconds())
	m.syncs().WithLabelValues(completionMode(j), result, action).Inc()
}

// written counts the pods, indexes and the Job itself that have finished between two stored states.
func (m *metrics) written(was *batchv1.JobStatus, j *batchv1.Job) {
	now, mode := &j.Status, completionMode(j)
	add := func(counter func() *prometheus.CounterVec, n int, labels ...string) {
		if n > 0 {
			counter().WithLabelValues(labels...).Add(float64(n))
		}
	}
	add(m.podsFinished, int(now.Succeeded-was.Succeeded), mode, succeeded)
	add(m.podsFinished, int(now.Failed-was.Failed), mode, failed)
	if indexed(j) {
		limit := "global"
		if j.Spec.BackoffLimitPerIndex != nil {
			limit = "perIndex"
			add(m.indexes, failedIndexes(j, now)-failedIndexes(j, was), failed, limit)
		}
		add(m.indexes, int(now.Succeeded-was.Succeeded), succeeded, limit)
	}
	for _, c := range now.Conditions {
		if c.Status != corev1.ConditionTrue || hasCondition(was, c.Type) {
			continue
		}
		switch c.Type {
		case batchv1.JobComplete:
			add(m.finished, 1, mode, succeeded, knownReason(c.Reason))
		case batchv1.JobFailed:
			add(m.finished, 1, mode, failed, knownReason(c.Reason))
		}
	}
}

func failedIndexes(j *batchv1.Job, status *batchv1.JobStatus) int {
	if status.FailedIndexes == nil || j.Spec.Completions == nil {
		return 0
	}
	return parseIntervals(*status.FailedIndexes, int(*j.Spec.Completions)).total()
}

func hasCondition(status *batchv1.JobStatus, t batchv1.JobConditionType) bool {
	return slices.ContainsFunc(status.Conditions, func(c batchv1.JobCondition) bool {
		return c.Type == t && c.Status == corev1.ConditionTrue
	})
}

// knownReason returns a reason of this controller, or "": another client may have written the condition.
func knownReason(reason string) string {
	switch reason {
	case batchv1.JobReasonPodFailurePolicy, batchv1.JobReasonBackoffLimitExceeded, batchv1.JobReasonDeadlineExceeded,
		batchv1.JobReasonMaxFailedIndexesExceeded, batchv1.JobReasonFailedIndexes, batchv1.JobReasonSuccessPolicy,
		batchv1.JobReasonCompletionsReached:
		return reason
	}
	return ""
}

// podsCreated counts the pods that a sync has created or could not create.
func (s *sync) podsCreated(created, errors int) {
	reason := "new"
	switch {
	case replacesOnlyFailed(s.job) && s.failed > 0:
		reason = "recreate_failed"
	case !replacesOnlyFailed(s.job) && (s.failed > 0 || s.terminating > 0):
		reason = "recreate_terminating_or_failed"
	}
	for result, n := range map[string]int{succeeded: created, failed: errors} {
		if n > 0 {
			s.metrics.created().WithLabelValues(reason, result).Add(float64(n))
		}
	}
}

// podChanged counts pods that have ended and wait for a Job to count them. before or after is nil for a pod that is new
// or gone.
func (m *metrics) podChanged(before, after *corev1.Pod) {
	waits := func(pod *corev1.Pod) bool { return pod != nil && controller.PodEnded(pod) && tracked(pod) }
	switch waited, waiting := waits(before), waits(after); {
	case waiting && !waited:
		m.finalizers().WithLabelValues("add").Inc()
	case waited && !waiting:
		m.finalizers().WithLabelValues("delete").Inc()
	}
}

// policyApplied counts a failed pod that has lost its finalizer, by the action of the rule that matched it.
func (s *sync) policyApplied(pod *corev1.Pod) {
	if s.job.Spec.PodFailurePolicy == nil || !s.isFailed(pod) {
		return
	}
	if action, message := s.policyFor(pod); message != "" {
		s.metrics.policy().WithLabelValues(string(action)).Inc()
	}
}
