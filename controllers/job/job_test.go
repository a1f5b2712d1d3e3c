package job_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
	"github.com/coxswain-dev/coxswain/internal/series/seriestest"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

// cluster adds helpers for Jobs to a controllertest.Clocked.
type cluster struct{ *controllertest.Clocked }

func runsForever(j *batchv1.Job) { j.Spec.Template.Annotations = nil }

func newJobs(t testing.TB) cluster {
	return cluster{controllertest.NewClocked(t, 2, "job", "garbagecollector")}
}

func (c cluster) awaitPodsReleased() {
	c.Helper()
	c.Reaches("no pod has a finalizer", func() bool {
		for _, p := range c.Pods() {
			if len(p.Finalizers) > 0 {
				return false
			}
		}
		return true
	})
}

func TestJob_RunsToCompletion(t *testing.T) {
	t.Parallel()
	c := newJobs(t)
	c.CreateJob("pi", func(j *batchv1.Job) { j.Spec.Completions, j.Spec.Parallelism = new(int32(5)), new(int32(2)) })
	j := c.AwaitJob("pi", batchv1.JobComplete)
	require.EqualValues(t, 5, j.Status.Succeeded)
	require.Zero(t, j.Status.Failed)
	require.Zero(t, j.Status.Active)
	require.Zero(t, *j.Status.Ready)
	require.Zero(t, *j.Status.Terminating)
	require.NotNil(t, j.Status.StartTime)
	require.NotNil(t, j.Status.CompletionTime)
	require.Equal(t, batchv1.JobReasonCompletionsReached,
		controllertest.JobCondition(j, batchv1.JobSuccessCriteriaMet).Reason)
	pods := c.Pods()
	require.Len(t, pods, 5)
	for _, pod := range pods {
		require.Equal(t, "pi", pod.Labels[batchv1.JobNameLabel])
		require.True(t, metav1.IsControlledBy(&pod, j))
	}
	c.awaitPodsReleased()
	c.AwaitEvent("SuccessfulCreate", "Created pod: pi-")
	c.AwaitEvent("Completed", "Job completed")
	c.AwaitMetric(5, "job_controller_job_pods_finished_total", "completion_mode", "NonIndexed", "result", "succeeded")
	c.AwaitMetric(1, "job_controller_jobs_finished_total", "completion_mode", "NonIndexed", "result", "succeeded",
		"reason", "CompletionsReached")
	c.AwaitMetric(5, "job_controller_terminated_pods_tracking_finalizer_total", "event", "add")
	c.AwaitMetric(5, "job_controller_terminated_pods_tracking_finalizer_total", "event", "delete")
	c.AwaitMetric(5, "job_controller_job_pods_creation_total", "reason", "new", "status", "succeeded")
	for _, action := range []string{"pods_created", "tracking"} {
		labels := []string{"completion_mode", "NonIndexed", "result", "success", "action", action}
		syncs := seriestest.Value(t, c.Metrics, "job_controller_job_syncs_total", labels...)
		require.NotZero(t, syncs, action)
		require.Equal(t, syncs, seriestest.Value(t, c.Metrics, "job_controller_job_sync_duration_seconds", labels...))
	}
}

func TestJob_RunsNoMoreThanParallelismAtOnce(t *testing.T) {
	t.Parallel()
	c := newJobs(t)
	c.CreateJob("pi", func(j *batchv1.Job) {
		runsForever(j)
		j.Spec.Completions, j.Spec.Parallelism = new(int32(10)), new(int32(3))
	})
	active := func(n int32) func() bool {
		return func() bool { s := c.Job("pi").Status; return s.Active == n && s.Ready != nil && *s.Ready == n }
	}
	c.Reaches("3 run", active(3))
	require.Len(t, c.Pods(), 3)
	c.EditJob("pi", func(j *batchv1.Job) { j.Spec.Parallelism = new(int32(1)) })
	c.Reaches("1 runs", active(1))
	c.Reaches("the others are gone", func() bool { return len(c.Pods()) == 1 })
	require.Zero(t, c.Job("pi").Status.Failed, "what was taken away has not failed")
	require.NotZero(t, seriestest.Value(t, c.Metrics, "job_controller_job_syncs_total", "action", "pods_deleted"))
	c.EditJob("pi", func(j *batchv1.Job) { j.Spec.Parallelism = new(int32(4)) })
	c.Reaches("4 run", active(4))
}

func TestJob_WorkQueueEndsWithTheFirstSuccess(t *testing.T) {
	t.Parallel()
	c := newJobs(t)
	c.CreateJob("queue", func(j *batchv1.Job) { controllertest.EndsAfter(j, time.Minute, 0); j.Spec.Parallelism = new(int32(3)) })
	c.Reaches("3 run", func() bool {
		s := c.Job("queue").Status
		return s.Active == 3 && s.Ready != nil && *s.Ready == 3
	})
	require.Nil(t, c.Job("queue").Spec.Completions)
	c.Step(2 * time.Minute)
	j := c.AwaitJob("queue", batchv1.JobComplete)
	require.EqualValues(t, 3, j.Status.Succeeded)
	require.Len(t, c.Pods(), 3)
}

func TestJob_FailsWhenItsBackoffLimitIsExceeded(t *testing.T) {
	t.Parallel()
	c := newJobs(t)
	c.CreateJob("bad", func(j *batchv1.Job) { controllertest.EndsAfter(j, 0, 1); j.Spec.BackoffLimit = new(int32(2)) })
	failed := func(n int32) func() bool { return func() bool { return c.Job("bad").Status.Failed == n } }
	c.Reaches("the first failure", failed(1))
	require.Len(t, c.Pods(), 1, "the next pod waits for 10 s")
	c.Passing(time.Second, "the second failure", failed(2))
	c.Passing(time.Second, "the third failure", failed(3))
	// The times of the node count: the test's clock moves on while failures are reported.
	var ended []time.Time
	for _, p := range c.Pods() {
		ended = append(ended, p.Status.ContainerStatuses[0].State.Terminated.FinishedAt.Time)
	}
	slices.SortFunc(ended, time.Time.Compare)
	require.Len(t, ended, 3)
	require.GreaterOrEqual(t, ended[1].Sub(ended[0]), 10*time.Second)
	require.GreaterOrEqual(t, ended[2].Sub(ended[1]), 20*time.Second, "it waits twice as long")
	j := c.AwaitJob("bad", batchv1.JobFailed)
	require.Equal(t, batchv1.JobReasonBackoffLimitExceeded, controllertest.JobCondition(j, batchv1.JobFailed).Reason)
	require.Equal(t, batchv1.JobReasonBackoffLimitExceeded,
		controllertest.JobCondition(j, batchv1.JobFailureTarget).Reason)
	require.Nil(t, j.Status.CompletionTime)
	require.EqualValues(t, 3, j.Status.Failed)
	require.Len(t, c.Pods(), 3)
	c.awaitPodsReleased()
	c.AwaitEvent("BackoffLimitExceeded", "Job has reached the specified backoff limit")
	c.AwaitMetric(3, "job_controller_job_pods_finished_total", "completion_mode", "NonIndexed", "result", "failed")
	c.AwaitMetric(1, "job_controller_jobs_finished_total", "result", "failed", "reason", "BackoffLimitExceeded")
	c.AwaitMetric(2, "job_controller_job_pods_creation_total", "reason", "recreate_terminating_or_failed",
		"status", "succeeded")
}

func TestJob_FailsAtItsDeadlineAndDeletesItsPods(t *testing.T) {
	t.Parallel()
	c := newJobs(t)
	c.CreateJob("slow", func(j *batchv1.Job) {
		runsForever(j)
		j.Spec.Parallelism, j.Spec.Completions, j.Spec.ActiveDeadlineSeconds = new(int32(2)), new(int32(2)),
			new(int64(100))
	})
	c.Reaches("2 run", func() bool { return c.Job("slow").Status.Active == 2 })
	c.Step(101 * time.Second)
	j := c.AwaitJob("slow", batchv1.JobFailed)
	require.Equal(t, batchv1.JobReasonDeadlineExceeded, controllertest.JobCondition(j, batchv1.JobFailed).Reason)
	require.EqualValues(t, 2, j.Status.Failed)
	require.Zero(t, j.Status.Active)
	c.Reaches("the pods are gone", func() bool { return len(c.Pods()) == 0 })
	c.AwaitEvent("SuccessfulDelete", "Deleted pod: slow-")
}

func TestJob_IndexedGivesEachPodItsIndex(t *testing.T) {
	t.Parallel()
	c := newJobs(t)
	c.CreateJob("render", func(j *batchv1.Job) {
		j.Spec.CompletionMode = new(batchv1.IndexedCompletion)
		j.Spec.Completions, j.Spec.Parallelism = new(int32(6)), new(int32(4))
	})
	j := c.AwaitJob("render", batchv1.JobComplete)
	require.Equal(t, "0-5", j.Status.CompletedIndexes)
	require.EqualValues(t, 6, j.Status.Succeeded)
	seen := map[string]bool{}
	for _, pod := range c.Pods() {
		i := pod.Annotations[batchv1.JobCompletionIndexAnnotation]
		require.False(t, seen[i], "index %s twice", i)
		seen[i] = true
		require.Equal(t, i, pod.Labels[batchv1.JobCompletionIndexAnnotation])
		require.Equal(t, "render-"+i, pod.Spec.Hostname)
		require.Contains(t, pod.Name, "render-"+i+"-")
		env := pod.Spec.Containers[0].Env[0]
		require.Equal(t, "JOB_COMPLETION_INDEX", env.Name)
		require.Contains(t, env.ValueFrom.FieldRef.FieldPath, batchv1.JobCompletionIndexAnnotation)
	}
	require.Len(t, seen, 6)
}

// withoutNodes starts a cluster in which the test plays the nodes.
func withoutNodes(t testing.TB) cluster {
	return cluster{controllertest.NewClocked(t, 0, "job", "garbagecollector")}
}

func (c cluster) activePods(n int) []corev1.Pod {
	c.Helper()
	var active []corev1.Pod
	c.Passing(50*time.Millisecond, fmt.Sprintf("%d active pods", n), func() bool {
		active = nil
		for _, p := range c.Pods() {
			if p.Status.Phase != corev1.PodFailed && p.Status.Phase != corev1.PodSucceeded &&
				p.DeletionTimestamp == nil {
				active = append(active, p)
			}
		}
		return len(active) == n
	})
	return active
}

func index(p *corev1.Pod) string { return p.Annotations[batchv1.JobCompletionIndexAnnotation] }

func TestJob_BackoffLimitPerIndex(t *testing.T) {
	t.Parallel()
	c := withoutNodes(t)
	c.CreateJob("render", func(j *batchv1.Job) {
		j.Spec.CompletionMode = new(batchv1.IndexedCompletion)
		j.Spec.Completions, j.Spec.Parallelism, j.Spec.BackoffLimitPerIndex = new(int32(3)),
			new(int32(3)), new(int32(1))
	})
	for _, p := range c.activePods(3) {
		require.Equal(t, "0", p.Annotations[batchv1.JobIndexFailureCountAnnotation])
		if index(&p) == "1" {
			c.EndPod(p.Name, corev1.PodFailed, 1)
		} else {
			c.EndPod(p.Name, corev1.PodSucceeded, 0)
		}
	}
	c.activePods(0)
	c.Step(11 * time.Second)
	again := c.activePods(1)[0]
	require.Equal(t, "1", index(&again))
	require.Equal(t, "1", again.Annotations[batchv1.JobIndexFailureCountAnnotation])
	c.EndPod(again.Name, corev1.PodFailed, 1)
	j := c.AwaitJob("render", batchv1.JobFailed)
	require.Equal(t, batchv1.JobReasonFailedIndexes, controllertest.JobCondition(j, batchv1.JobFailed).Reason)
	require.Equal(t, "0,2", j.Status.CompletedIndexes)
	require.Equal(t, "1", *j.Status.FailedIndexes)
	require.EqualValues(t, 2, j.Status.Failed)
	require.EqualValues(t, 2, j.Status.Succeeded)
	c.awaitPodsReleased()
	c.AwaitMetric(2, "job_controller_job_finished_indexes_total", "status", "succeeded", "backoffLimit", "perIndex")
	c.AwaitMetric(1, "job_controller_job_finished_indexes_total", "status", "failed", "backoffLimit", "perIndex")
	c.AwaitMetric(1, "job_controller_jobs_finished_total", "completion_mode", "Indexed", "reason", "FailedIndexes")
}

func TestJob_MaxFailedIndexes(t *testing.T) {
	t.Parallel()
	c := withoutNodes(t)
	c.CreateJob("render", func(j *batchv1.Job) {
		j.Spec.CompletionMode, j.Spec.MaxFailedIndexes = new(batchv1.IndexedCompletion), new(int32(0))
		j.Spec.Completions, j.Spec.Parallelism, j.Spec.BackoffLimitPerIndex = new(int32(4)),
			new(int32(2)), new(int32(0))
	})
	c.EndPod(c.activePods(2)[0].Name, corev1.PodFailed, 1)
	j := c.AwaitJob("render", batchv1.JobFailureTarget)
	require.Equal(t, batchv1.JobReasonMaxFailedIndexesExceeded,
		controllertest.JobCondition(j, batchv1.JobFailureTarget).Reason)
	c.AwaitJob("render", batchv1.JobFailed)
}

func TestJob_PodFailurePolicy(t *testing.T) {
	rules := &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{
		{Action: batchv1.PodFailurePolicyActionIgnore,
			OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{
				{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}}},
		{Action: batchv1.PodFailurePolicyActionFailJob, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{
			ContainerName: new("c"), Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{42}}},
	}}
	t.Parallel()
	c := withoutNodes(t)
	c.CreateJob("picky", func(j *batchv1.Job) { j.Spec.PodFailurePolicy, j.Spec.BackoffLimit = rules, new(int32(1)) })
	first := c.activePods(1)[0]
	c.EndPod(first.Name, corev1.PodFailed, 137, corev1.PodCondition{Type: corev1.DisruptionTarget,
		Status: corev1.ConditionTrue})
	c.Step(11 * time.Second)
	second := c.activePods(1)[0]
	require.Zero(t, c.Job("picky").Status.Failed, "ignored")
	c.EndPod(second.Name, corev1.PodFailed, 3)
	c.Reaches("counted", func() bool { return c.Job("picky").Status.Failed == 1 })
	c.Step(21 * time.Second)
	third := c.activePods(1)[0]
	c.EndPod(third.Name, corev1.PodFailed, 42)
	j := c.AwaitJob("picky", batchv1.JobFailed)
	failed := controllertest.JobCondition(j, batchv1.JobFailed)
	require.Equal(t, batchv1.JobReasonPodFailurePolicy, failed.Reason)
	require.Equal(t, fmt.Sprintf("Container c for pod default/%s failed with exit code 42 matching FailJob rule "+
		"at index 1", third.Name), failed.Message)
	require.EqualValues(t, 2, j.Status.Failed)
	c.AwaitMetric(1, "job_controller_pod_failures_handled_by_failure_policy_total", "action", "Ignore")
	c.AwaitMetric(1, "job_controller_pod_failures_handled_by_failure_policy_total", "action", "FailJob")
}

func TestJob_SuccessPolicy(t *testing.T) {
	t.Parallel()
	c := withoutNodes(t)
	c.CreateJob("lead", func(j *batchv1.Job) {
		j.Spec.CompletionMode = new(batchv1.IndexedCompletion)
		j.Spec.Completions, j.Spec.Parallelism = new(int32(4)), new(int32(4))
		j.Spec.SuccessPolicy =
			&batchv1.SuccessPolicy{Rules: []batchv1.SuccessPolicyRule{{SucceededIndexes: new("0,2-3"),
				SucceededCount: new(int32(1))}}}
	})
	pods := map[string]*corev1.Pod{}
	for _, p := range c.activePods(4) {
		pods[index(&p)] = &p
	}
	c.EndPod(pods["1"].Name, corev1.PodSucceeded, 0)
	c.Reaches("one succeeded", func() bool { return c.Job("lead").Status.Succeeded == 1 })
	require.Empty(t, controllertest.JobCondition(c.Job("lead"), batchv1.JobSuccessCriteriaMet).Type)
	c.EndPod(pods["2"].Name, corev1.PodSucceeded, 0)
	j := c.AwaitJob("lead", batchv1.JobComplete)
	require.Equal(t, "Matched rules at index 0", controllertest.JobCondition(j, batchv1.JobSuccessCriteriaMet).Message)
	require.Equal(t, batchv1.JobReasonSuccessPolicy, controllertest.JobCondition(j, batchv1.JobComplete).Reason)
	require.Zero(t, j.Status.Failed, "what was still running has not failed")
	require.Equal(t, "1,2", j.Status.CompletedIndexes)
}

func TestJob_SuspendsAndResumes(t *testing.T) {
	t.Parallel()
	c := newJobs(t)
	c.CreateJob("pause", func(j *batchv1.Job) {
		runsForever(j)
		j.Spec.Suspend, j.Spec.ActiveDeadlineSeconds = new(true), new(int64(100))
	})
	c.AwaitJob("pause", batchv1.JobSuspended)
	require.Empty(t, c.Pods())
	require.Nil(t, c.Job("pause").Status.StartTime)
	c.Step(time.Hour)
	c.EditJob("pause", func(j *batchv1.Job) { j.Spec.Suspend = new(false) })
	c.Reaches("runs", func() bool {
		j := c.Job("pause")
		return j.Status.Active == 1 && controllertest.JobCondition(j, batchv1.JobSuspended).Reason == "JobResumed"
	})
	c.EditJob("pause", func(j *batchv1.Job) { j.Spec.Suspend = new(true) })
	c.Reaches("all pods end", func() bool {
		s := c.Job("pause").Status
		return len(c.Pods()) == 0 && s.Active == 0 && s.StartTime == nil
	})
	c.Step(time.Hour)
	c.EditJob("pause", func(j *batchv1.Job) { j.Spec.Suspend = new(false) })
	c.Reaches("runs again", func() bool { return c.Job("pause").Status.Active == 1 })
	j := c.Job("pause")
	require.Zero(t, j.Status.Failed)
	require.WithinDuration(t, c.Now(), j.Status.StartTime.Time, 30*time.Second, "the deadline begins anew")
	c.AwaitEvent("Suspended", "Job suspended")
	c.AwaitEvent("Resumed", "Job resumed")
	c.Step(101 * time.Second)
	require.Equal(t, batchv1.JobReasonDeadlineExceeded, controllertest.JobCondition(c.AwaitJob("pause", batchv1.JobFailed),
		batchv1.JobFailed).Reason)
}

func TestJob_PodReplacementPolicyFailedWaitsForThePodsEnd(t *testing.T) {
	t.Parallel()
	c := withoutNodes(t)
	c.CreateJob("exclusive", func(j *batchv1.Job) { j.Spec.PodReplacementPolicy = new(batchv1.Failed) })
	pod := c.activePods(1)[0]
	require.NoError(t, retry.RetryOnConflict(retry.DefaultRetry, func() error {
		blocked, err := c.Client.CoreV1().Pods("default").Get(c.Context(), pod.Name, metav1.GetOptions{})
		require.NoError(t, err)
		blocked.Finalizers = append(blocked.Finalizers, "example.com/hold")
		_, err = c.Client.CoreV1().Pods("default").Update(c.Context(), blocked, metav1.UpdateOptions{})
		return err
	}))
	require.NoError(t, c.Client.CoreV1().Pods("default").Delete(c.Context(), pod.Name, metav1.DeleteOptions{}))
	c.Reaches("terminating", func() bool {
		s := c.Job("exclusive").Status
		return s.Terminating != nil && *s.Terminating == 1 && s.Active == 0
	})
	require.Len(t, c.Pods(), 1)
	c.EndPod(pod.Name, corev1.PodFailed, 143)
	c.Reaches("failed", func() bool { return c.Job("exclusive").Status.Failed == 1 })
	c.Step(11 * time.Second)
	c.activePods(1)
}

func TestJob_ReleasesItsPodsWhenItIsDeleted(t *testing.T) {
	for _, policy := range []metav1.DeletionPropagation{
		metav1.DeletePropagationBackground, metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan,
	} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			c := newJobs(t)
			c.CreateJob("gone", func(j *batchv1.Job) {
				runsForever(j)
				j.Spec.Parallelism, j.Spec.Completions = new(int32(3)), new(int32(3))
			})
			c.Reaches("3 run", func() bool { return c.Job("gone").Status.Active == 3 })
			require.NoError(t, c.Client.BatchV1().Jobs("default").Delete(c.Context(), "gone",
				metav1.DeleteOptions{PropagationPolicy: &policy}))
			c.Reaches("the job is gone", func() bool {
				_, err := c.Client.BatchV1().Jobs("default").Get(c.Context(), "gone", metav1.GetOptions{})
				return apierrors.IsNotFound(err)
			})
			if policy != metav1.DeletePropagationOrphan {
				c.Reaches("the pods are gone", func() bool { return len(c.Pods()) == 0 })
				return
			}
			c.awaitPodsReleased()
			require.Len(t, c.Pods(), 3)
		})
	}
}

func TestJob_IgnoresJobsManagedByOthers(t *testing.T) {
	t.Parallel()
	c := newJobs(t)
	c.CreateJob("foreign", func(j *batchv1.Job) { j.Spec.ManagedBy = new("example.com/batch") })
	c.CreateJob("ours", nil)
	c.AwaitJob("ours", batchv1.JobComplete)
	require.Equal(t, batchv1.JobStatus{}, c.Job("foreign").Status)
	require.Len(t, c.Pods(), 1)
	c.AwaitMetric(1, "job_controller_jobs_by_external_controller_total", "controller_name", "example.com/batch")
	// Clients choose the names of controllers, so the number of series is limited.
	for i := range 20 {
		c.CreateJob(fmt.Sprint("other-", i), func(j *batchv1.Job) {
			j.Spec.ManagedBy = new(fmt.Sprintf("example.com/batch-%d", i))
		})
	}
	c.AwaitMetric(1, "job_controller_jobs_by_external_controller_total", "controller_name", "example.com/batch-19")
	require.LessOrEqual(t, seriestest.Value(t, c.Metrics, "job_controller_jobs_by_external_controller_total"), 16.0)
}

// TestJob_CountsEachPodOnceDespiteRestarts restarts the controllers, and fails and completes pods at random.
// The counters must be exact at the end.
func TestJob_CountsEachPodOnceDespiteRestarts(t *testing.T) {
	t.Parallel()
	c := withoutNodes(t)
	random := controllertest.NewRandom(t)
	c.CreateJob("work", func(j *batchv1.Job) {
		j.Spec.Completions, j.Spec.Parallelism, j.Spec.BackoffLimit = new(int32(30)), new(int32(5)), new(int32(1000))
	})
	ended, failed := map[types.UID]bool{}, 0
	for succeeded := 0; succeeded < 30; {
		c.Passing(time.Minute, "a pod to end", func() bool {
			for _, p := range c.Pods() {
				if p.DeletionTimestamp == nil && !ended[p.UID] {
					return true
				}
			}
			return false
		})
		for _, p := range c.Pods() {
			if p.DeletionTimestamp != nil || ended[p.UID] {
				continue
			}
			ended[p.UID] = true
			if random.IntN(3) == 0 {
				failed++
				c.EndPod(p.Name, corev1.PodFailed, 1)
			} else {
				succeeded++
				c.EndPod(p.Name, corev1.PodSucceeded, 0)
			}
		}
		if random.IntN(2) == 0 {
			c.Restart()
		}
	}
	j := c.AwaitJob("work", batchv1.JobComplete)
	require.EqualValues(t, failed, j.Status.Failed)
	require.GreaterOrEqual(t, j.Status.Succeeded, int32(30))
	require.EqualValues(t, len(ended), j.Status.Failed+j.Status.Succeeded)
}

func TestJob_DoesNotCountSurplusAdoptedPods(t *testing.T) {
	t.Parallel()
	c := cluster{controllertest.NewClockedWith(t, controllers.Settings{}, "job")}
	c.CreateReadyNode("node")
	pods, labels := c.Client.CoreV1().Pods("default"), map[string]string{"work": "pi"}
	// EditStatus retries conflicts, because the controller writes the pods, too.
	ends := func(name string) {
		controllertest.EditStatus(c.Cluster, pods, name, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
	}
	for _, name := range []string{"a", "b"} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
		pod.Spec = corev1.PodSpec{NodeName: "node", RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{Name: "c", Image: "i"}}}
		pod, err := pods.Create(c.Context(), pod, metav1.CreateOptions{})
		require.NoError(t, err)
		pod.Status.Phase = corev1.PodRunning
		_, err = pods.UpdateStatus(c.Context(), pod, metav1.UpdateOptions{})
		require.NoError(t, err)
	}
	c.CreateJob("pi", func(j *batchv1.Job) {
		j.Spec.ManualSelector, j.Spec.Selector, j.Spec.Template.Labels = new(true),
			&metav1.LabelSelector{MatchLabels: labels}, labels
	})
	surplus, remaining := "a", "b"
	c.Reaches("one goes", func() bool {
		if c.Goes("b")() {
			surplus, remaining = "b", "a"
		}
		return c.Goes(surplus)()
	})
	require.Empty(t, c.Pod(surplus).Finalizers, "the finalizer was removed first")
	ends(surplus)
	require.NoError(t, pods.Delete(c.Context(), surplus, *metav1.NewDeleteOptions(0)))
	ends(remaining)
	j := c.AwaitJob("pi", batchv1.JobComplete)
	require.EqualValues(t, 1, j.Status.Succeeded)
	require.Zero(t, j.Status.Failed)
}

func TestJob_CountsAnAdoptedPodThatHasEnded(t *testing.T) {
	t.Parallel()
	c := cluster{controllertest.NewClockedWith(t, controllers.Settings{}, "job")}
	labels := map[string]string{"work": "pi"}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "early", Labels: labels}}
	pod.Spec = corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever,
		Containers: []corev1.Container{{Name: "c", Image: "i"}}}
	pod, err := c.Client.CoreV1().Pods("default").Create(c.Context(), pod, metav1.CreateOptions{})
	require.NoError(t, err)
	pod.Status.Phase = corev1.PodSucceeded
	_, err = c.Client.CoreV1().Pods("default").UpdateStatus(c.Context(), pod, metav1.UpdateOptions{})
	require.NoError(t, err)
	c.CreateJob("pi", func(j *batchv1.Job) {
		j.Spec.ManualSelector, j.Spec.Selector, j.Spec.Template.Labels = new(true),
			&metav1.LabelSelector{MatchLabels: labels}, labels
	})
	require.EqualValues(t, 1, c.AwaitJob("pi", batchv1.JobComplete).Status.Succeeded)
	require.Len(t, c.Pods(), 1, "its work was done when the Job came")
}
