package controllers_test

import (
	"fmt"
	"slices"
	"strconv"
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
)

// startJob makes a Job whose pods end at once with the exit code that code says.
func (c *cluster) startJob(name string, edit func(*batchv1.Job)) *batchv1.Job {
	j := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"sim.coxswain.dev/exit-code": "0"}},
			Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever,
				Containers: []corev1.Container{{Name: "c", Image: "one"}}},
		}},
	}
	if edit != nil {
		edit(j)
	}
	j, err := c.client.BatchV1().Jobs("default").Create(c.ctx, j, metav1.CreateOptions{})
	require.NoError(c, err)
	return j
}

// pods of the Job end after d with a code.
func ends(j *batchv1.Job, d time.Duration, code int) {
	j.Spec.Template.Annotations = map[string]string{
		"sim.coxswain.dev/run-for": d.String(), "sim.coxswain.dev/exit-code": strconv.Itoa(code),
	}
}

func runsForEver(j *batchv1.Job) { j.Spec.Template.Annotations = nil }

func (c *cluster) job(name string) *batchv1.Job {
	j, err := c.client.BatchV1().Jobs("default").Get(c.ctx, name, metav1.GetOptions{})
	require.NoError(c, err)
	return j
}

func jobCondition(j *batchv1.Job, t batchv1.JobConditionType) batchv1.JobCondition {
	for _, c := range j.Status.Conditions {
		if c.Type == t {
			return c
		}
	}
	return batchv1.JobCondition{}
}

func (c *clocked) awaitJob(name string, t batchv1.JobConditionType) *batchv1.Job {
	c.Helper()
	var j *batchv1.Job
	defer func() {
		if c.Failed() {
			c.Logf("job: %+v", j.Status)
			for _, p := range c.pods() {
				c.Logf("pod %s %s %v finalizers %v deleted %v", p.Name, p.Status.Phase, p.Annotations, p.Finalizers, p.DeletionTimestamp)
			}
		}
	}()
	c.passing(50*time.Millisecond, fmt.Sprintf("job %s is %s", name, t), func() bool {
		j = c.job(name)
		return jobCondition(j, t).Status == corev1.ConditionTrue
	})
	return j
}

func (c *cluster) editJob(name string, change func(*batchv1.Job)) {
	editing(c, name, c.client.BatchV1().Jobs("default"), change)
}

func newJobs(t testing.TB) *clocked { return newClocked(t, 2, "job", "garbagecollector") }

func (c *clocked) awaitPodsLetGo() {
	c.Helper()
	c.reaches("no pod has a finalizer", func() bool {
		for _, p := range c.pods() {
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
	c.startJob("pi", func(j *batchv1.Job) { j.Spec.Completions, j.Spec.Parallelism = new(int32(5)), new(int32(2)) })
	j := c.awaitJob("pi", batchv1.JobComplete)
	require.EqualValues(t, 5, j.Status.Succeeded)
	require.Zero(t, j.Status.Failed)
	require.Zero(t, j.Status.Active)
	require.Zero(t, *j.Status.Ready)
	require.Zero(t, *j.Status.Terminating)
	require.NotNil(t, j.Status.StartTime)
	require.NotNil(t, j.Status.CompletionTime)
	require.Equal(t, batchv1.JobReasonCompletionsReached, jobCondition(j, batchv1.JobSuccessCriteriaMet).Reason)
	pods := c.pods()
	require.Len(t, pods, 5)
	for _, pod := range pods {
		require.Equal(t, "pi", pod.Labels[batchv1.JobNameLabel])
		require.True(t, metav1.IsControlledBy(&pod, j))
	}
	c.awaitPodsLetGo()
	c.awaitEvent("SuccessfulCreate", "Created pod: pi-")
	c.awaitEvent("Completed", "Job completed")
}

func TestJob_RunsNoMoreThanParallelismAtOnce(t *testing.T) {
	t.Parallel()
	c := newJobs(t)
	c.startJob("pi", func(j *batchv1.Job) {
		runsForEver(j)
		j.Spec.Completions, j.Spec.Parallelism = new(int32(10)), new(int32(3))
	})
	active := func(n int32) func() bool {
		return func() bool { s := c.job("pi").Status; return s.Active == n && s.Ready != nil && *s.Ready == n }
	}
	c.reaches("3 run", active(3))
	require.Len(t, c.pods(), 3)
	c.editJob("pi", func(j *batchv1.Job) { j.Spec.Parallelism = new(int32(1)) })
	c.reaches("1 runs", active(1))
	c.reaches("the others are gone", func() bool { return len(c.pods()) == 1 })
	require.Zero(t, c.job("pi").Status.Failed, "what was taken away has not failed")
	c.editJob("pi", func(j *batchv1.Job) { j.Spec.Parallelism = new(int32(4)) })
	c.reaches("4 run", active(4))
}

func TestJob_FirstSuccessEndsAWorkQueue(t *testing.T) {
	t.Parallel()
	c := newJobs(t)
	c.startJob("queue", func(j *batchv1.Job) { ends(j, time.Minute, 0); j.Spec.Parallelism = new(int32(3)) })
	c.reaches("3 run", func() bool { s := c.job("queue").Status; return s.Active == 3 && s.Ready != nil && *s.Ready == 3 })
	require.Nil(t, c.job("queue").Spec.Completions)
	c.Step(2 * time.Minute)
	j := c.awaitJob("queue", batchv1.JobComplete)
	require.EqualValues(t, 3, j.Status.Succeeded)
	require.Len(t, c.pods(), 3)
}

func TestJob_FailsWhenItsBackoffLimitIsExceeded(t *testing.T) {
	t.Parallel()
	c := newJobs(t)
	c.startJob("bad", func(j *batchv1.Job) { ends(j, 0, 1); j.Spec.BackoffLimit = new(int32(2)) })
	failed := func(n int32) func() bool { return func() bool { return c.job("bad").Status.Failed == n } }
	c.reaches("the first failure", failed(1))
	require.Len(t, c.pods(), 1, "the next waits for 10 s")
	c.passing(time.Second, "the second failure", failed(2))
	c.passing(time.Second, "the third failure", failed(3))
	// By the node's time: ours goes on while the news of a failure are on their way.
	var ended []time.Time
	for _, p := range c.pods() {
		ended = append(ended, p.Status.ContainerStatuses[0].State.Terminated.FinishedAt.Time)
	}
	slices.SortFunc(ended, time.Time.Compare)
	require.Len(t, ended, 3)
	require.GreaterOrEqual(t, ended[1].Sub(ended[0]), 10*time.Second)
	require.GreaterOrEqual(t, ended[2].Sub(ended[1]), 20*time.Second, "it waits twice as long")
	j := c.awaitJob("bad", batchv1.JobFailed)
	require.Equal(t, batchv1.JobReasonBackoffLimitExceeded, jobCondition(j, batchv1.JobFailed).Reason)
	require.Equal(t, batchv1.JobReasonBackoffLimitExceeded, jobCondition(j, batchv1.JobFailureTarget).Reason)
	require.Nil(t, j.Status.CompletionTime)
	require.EqualValues(t, 3, j.Status.Failed)
	require.Len(t, c.pods(), 3)
	c.awaitPodsLetGo()
	c.awaitEvent("BackoffLimitExceeded", "Job has reached the specified backoff limit")
}

func TestJob_FailsAtItsDeadlineAndEndsItsPods(t *testing.T) {
	t.Parallel()
	c := newJobs(t)
	c.startJob("slow", func(j *batchv1.Job) {
		runsForEver(j)
		j.Spec.Parallelism, j.Spec.Completions, j.Spec.ActiveDeadlineSeconds = new(int32(2)), new(int32(2)), new(int64(100))
	})
	c.reaches("2 run", func() bool { return c.job("slow").Status.Active == 2 })
	c.Step(101 * time.Second)
	j := c.awaitJob("slow", batchv1.JobFailed)
	require.Equal(t, batchv1.JobReasonDeadlineExceeded, jobCondition(j, batchv1.JobFailed).Reason)
	require.EqualValues(t, 2, j.Status.Failed)
	require.Zero(t, j.Status.Active)
	c.reaches("the pods are gone", func() bool { return len(c.pods()) == 0 })
	c.awaitEvent("SuccessfulDelete", "Deleted pod: slow-")
}

func TestJob_IndexedGivesEachPodItsIndex(t *testing.T) {
	t.Parallel()
	c := newJobs(t)
	c.startJob("render", func(j *batchv1.Job) {
		j.Spec.CompletionMode = new(batchv1.IndexedCompletion)
		j.Spec.Completions, j.Spec.Parallelism = new(int32(6)), new(int32(4))
	})
	j := c.awaitJob("render", batchv1.JobComplete)
	require.Equal(t, "0-5", j.Status.CompletedIndexes)
	require.EqualValues(t, 6, j.Status.Succeeded)
	seen := map[string]bool{}
	for _, pod := range c.pods() {
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

// fail ends a running pod as a node would that has seen it fail.
func (c *cluster) endPod(pod *corev1.Pod, phase corev1.PodPhase, code int32, conditions ...corev1.PodCondition) {
	c.eventually("end pod "+pod.Name, func() bool {
		p, err := c.client.CoreV1().Pods("default").Get(c.ctx, pod.Name, metav1.GetOptions{})
		require.NoError(c, err)
		p.Status.Phase = phase
		p.Status.Conditions = conditions
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: code, FinishedAt: metav1.Now()}}}}
		_, err = c.client.CoreV1().Pods("default").UpdateStatus(c.ctx, p, metav1.UpdateOptions{})
		return err == nil
	})
}

// withoutNodes is a Job's world in which the test plays the node.
func withoutNodes(t testing.TB) *clocked { return newClocked(t, 0, "job", "garbagecollector") }

func (c *clocked) activePods(n int) []corev1.Pod {
	c.Helper()
	var active []corev1.Pod
	c.passing(50*time.Millisecond, fmt.Sprintf("%d active pods", n), func() bool {
		active = nil
		for _, p := range c.pods() {
			if p.Status.Phase != corev1.PodFailed && p.Status.Phase != corev1.PodSucceeded && p.DeletionTimestamp == nil {
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
	c.startJob("render", func(j *batchv1.Job) {
		j.Spec.CompletionMode = new(batchv1.IndexedCompletion)
		j.Spec.Completions, j.Spec.Parallelism, j.Spec.BackoffLimitPerIndex = new(int32(3)), new(int32(3)), new(int32(1))
	})
	for _, p := range c.activePods(3) {
		require.Equal(t, "0", p.Annotations[batchv1.JobIndexFailureCountAnnotation])
		if index(&p) == "1" {
			c.endPod(&p, corev1.PodFailed, 1)
		} else {
			c.endPod(&p, corev1.PodSucceeded, 0)
		}
	}
	c.activePods(0)
	c.Step(11 * time.Second)
	again := c.activePods(1)[0]
	require.Equal(t, "1", index(&again))
	require.Equal(t, "1", again.Annotations[batchv1.JobIndexFailureCountAnnotation])
	c.endPod(&again, corev1.PodFailed, 1)
	j := c.awaitJob("render", batchv1.JobFailed)
	require.Equal(t, batchv1.JobReasonFailedIndexes, jobCondition(j, batchv1.JobFailed).Reason)
	require.Equal(t, "0,2", j.Status.CompletedIndexes)
	require.Equal(t, "1", *j.Status.FailedIndexes)
	require.EqualValues(t, 2, j.Status.Failed)
	require.EqualValues(t, 2, j.Status.Succeeded)
	c.awaitPodsLetGo()
}

func TestJob_MaxFailedIndexes(t *testing.T) {
	t.Parallel()
	c := withoutNodes(t)
	c.startJob("render", func(j *batchv1.Job) {
		j.Spec.CompletionMode, j.Spec.MaxFailedIndexes = new(batchv1.IndexedCompletion), new(int32(0))
		j.Spec.Completions, j.Spec.Parallelism, j.Spec.BackoffLimitPerIndex = new(int32(4)), new(int32(2)), new(int32(0))
	})
	c.endPod(&c.activePods(2)[0], corev1.PodFailed, 1)
	j := c.awaitJob("render", batchv1.JobFailureTarget)
	require.Equal(t, batchv1.JobReasonMaxFailedIndexesExceeded, jobCondition(j, batchv1.JobFailureTarget).Reason)
	c.awaitJob("render", batchv1.JobFailed)
}

func TestJob_PodFailurePolicy(t *testing.T) {
	rules := &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{
		{Action: batchv1.PodFailurePolicyActionIgnore, OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{
			{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}}},
		{Action: batchv1.PodFailurePolicyActionFailJob, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{
			ContainerName: new("c"), Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{42}}},
	}}
	t.Parallel()
	c := withoutNodes(t)
	c.startJob("picky", func(j *batchv1.Job) { j.Spec.PodFailurePolicy, j.Spec.BackoffLimit = rules, new(int32(1)) })
	first := c.activePods(1)[0]
	c.endPod(&first, corev1.PodFailed, 137, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue})
	c.Step(11 * time.Second)
	second := c.activePods(1)[0]
	require.Zero(t, c.job("picky").Status.Failed, "ignored")
	c.endPod(&second, corev1.PodFailed, 3)
	c.reaches("counted", func() bool { return c.job("picky").Status.Failed == 1 })
	c.Step(21 * time.Second)
	third := c.activePods(1)[0]
	c.endPod(&third, corev1.PodFailed, 42)
	j := c.awaitJob("picky", batchv1.JobFailed)
	failed := jobCondition(j, batchv1.JobFailed)
	require.Equal(t, batchv1.JobReasonPodFailurePolicy, failed.Reason)
	require.Equal(t, fmt.Sprintf("Container c for pod default/%s failed with exit code 42 matching FailJob rule at index 1", third.Name), failed.Message)
	require.EqualValues(t, 2, j.Status.Failed)
}

func TestJob_SuccessPolicy(t *testing.T) {
	t.Parallel()
	c := withoutNodes(t)
	c.startJob("lead", func(j *batchv1.Job) {
		j.Spec.CompletionMode = new(batchv1.IndexedCompletion)
		j.Spec.Completions, j.Spec.Parallelism = new(int32(4)), new(int32(4))
		j.Spec.SuccessPolicy = &batchv1.SuccessPolicy{Rules: []batchv1.SuccessPolicyRule{{SucceededIndexes: new("0,2-3"), SucceededCount: new(int32(1))}}}
	})
	pods := map[string]*corev1.Pod{}
	for _, p := range c.activePods(4) {
		pods[index(&p)] = &p
	}
	c.endPod(pods["1"], corev1.PodSucceeded, 0)
	c.reaches("one succeeded", func() bool { return c.job("lead").Status.Succeeded == 1 })
	require.Empty(t, jobCondition(c.job("lead"), batchv1.JobSuccessCriteriaMet).Type)
	c.endPod(pods["2"], corev1.PodSucceeded, 0)
	j := c.awaitJob("lead", batchv1.JobComplete)
	require.Equal(t, "Matched rules at index 0", jobCondition(j, batchv1.JobSuccessCriteriaMet).Message)
	require.Equal(t, batchv1.JobReasonSuccessPolicy, jobCondition(j, batchv1.JobComplete).Reason)
	require.Zero(t, j.Status.Failed, "what was still running has not failed")
	require.Equal(t, "1,2", j.Status.CompletedIndexes)
}

func TestJob_SuspendsAndResumes(t *testing.T) {
	t.Parallel()
	c := newJobs(t)
	c.startJob("pause", func(j *batchv1.Job) {
		runsForEver(j)
		j.Spec.Suspend, j.Spec.ActiveDeadlineSeconds = new(true), new(int64(100))
	})
	c.awaitJob("pause", batchv1.JobSuspended)
	require.Empty(t, c.pods())
	require.Nil(t, c.job("pause").Status.StartTime)
	c.Step(time.Hour)
	c.editJob("pause", func(j *batchv1.Job) { j.Spec.Suspend = new(false) })
	c.reaches("runs", func() bool { return c.job("pause").Status.Active == 1 })
	require.Equal(t, "JobResumed", jobCondition(c.job("pause"), batchv1.JobSuspended).Reason)
	c.editJob("pause", func(j *batchv1.Job) { j.Spec.Suspend = new(true) })
	c.reaches("all pods end", func() bool { return len(c.pods()) == 0 && c.job("pause").Status.Active == 0 })
	require.Nil(t, c.job("pause").Status.StartTime)
	c.Step(time.Hour)
	c.editJob("pause", func(j *batchv1.Job) { j.Spec.Suspend = new(false) })
	c.reaches("runs again", func() bool { return c.job("pause").Status.Active == 1 })
	j := c.job("pause")
	require.Zero(t, j.Status.Failed)
	require.WithinDuration(t, c.Now(), j.Status.StartTime.Time, 30*time.Second, "the deadline begins anew")
	c.awaitEvent("Suspended", "Job suspended")
	c.awaitEvent("Resumed", "Job resumed")
	c.Step(101 * time.Second)
	require.Equal(t, batchv1.JobReasonDeadlineExceeded, jobCondition(c.awaitJob("pause", batchv1.JobFailed), batchv1.JobFailed).Reason)
}

func TestJob_PodReplacementPolicyFailedWaitsForTheEnd(t *testing.T) {
	t.Parallel()
	c := withoutNodes(t)
	c.startJob("exclusive", func(j *batchv1.Job) { j.Spec.PodReplacementPolicy = new(batchv1.Failed) })
	pod := c.activePods(1)[0]
	require.NoError(t, retry.RetryOnConflict(retry.DefaultRetry, func() error {
		held, err := c.client.CoreV1().Pods("default").Get(c.ctx, pod.Name, metav1.GetOptions{})
		require.NoError(t, err)
		held.Finalizers = append(held.Finalizers, "example.com/hold")
		_, err = c.client.CoreV1().Pods("default").Update(c.ctx, held, metav1.UpdateOptions{})
		return err
	}))
	require.NoError(t, c.client.CoreV1().Pods("default").Delete(c.ctx, pod.Name, metav1.DeleteOptions{}))
	c.reaches("terminating", func() bool {
		s := c.job("exclusive").Status
		return s.Terminating != nil && *s.Terminating == 1 && s.Active == 0
	})
	require.Len(t, c.pods(), 1)
	c.endPod(&pod, corev1.PodFailed, 143)
	c.reaches("failed", func() bool { return c.job("exclusive").Status.Failed == 1 })
	c.Step(11 * time.Second)
	c.activePods(1)
}

func TestJob_LetsItsPodsGoWhenItIsDeleted(t *testing.T) {
	for _, policy := range []metav1.DeletionPropagation{
		metav1.DeletePropagationBackground, metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan,
	} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			c := newJobs(t)
			c.startJob("gone", func(j *batchv1.Job) {
				runsForEver(j)
				j.Spec.Parallelism, j.Spec.Completions = new(int32(3)), new(int32(3))
			})
			c.reaches("3 run", func() bool { return c.job("gone").Status.Active == 3 })
			require.NoError(t, c.client.BatchV1().Jobs("default").Delete(c.ctx, "gone", metav1.DeleteOptions{PropagationPolicy: &policy}))
			c.reaches("the job is gone", func() bool {
				_, err := c.client.BatchV1().Jobs("default").Get(c.ctx, "gone", metav1.GetOptions{})
				return apierrors.IsNotFound(err)
			})
			if policy != metav1.DeletePropagationOrphan {
				c.reaches("the pods are gone", func() bool { return len(c.pods()) == 0 })
				return
			}
			c.awaitPodsLetGo()
			require.Len(t, c.pods(), 3)
		})
	}
}

func TestJob_LeavesJobsOfOthersAlone(t *testing.T) {
	t.Parallel()
	c := newJobs(t)
	c.startJob("theirs", func(j *batchv1.Job) { j.Spec.ManagedBy = new("example.com/batch") })
	c.startJob("ours", nil)
	c.awaitJob("ours", batchv1.JobComplete)
	require.Equal(t, batchv1.JobStatus{}, c.job("theirs").Status)
	require.Len(t, c.pods(), 1)
}

// TestJob_CountsEachPodOnceWhateverIsKilled stops and starts the controllers, fails and deletes
// pods at random; in the end the counters say exactly what happened.
func TestJob_CountsEachPodOnceWhateverIsKilled(t *testing.T) {
	t.Parallel()
	c := withoutNodes(t)
	random := newRandom(t)
	c.startJob("work", func(j *batchv1.Job) {
		j.Spec.Completions, j.Spec.Parallelism, j.Spec.BackoffLimit = new(int32(30)), new(int32(5)), new(int32(1000))
	})
	ended, failed := map[types.UID]bool{}, 0
	for succeeded := 0; succeeded < 30; {
		c.passing(time.Minute, "a pod to end", func() bool {
			for _, p := range c.pods() {
				if p.DeletionTimestamp == nil && !ended[p.UID] {
					return true
				}
			}
			return false
		})
		for _, p := range c.pods() {
			if p.DeletionTimestamp != nil || ended[p.UID] {
				continue
			}
			ended[p.UID] = true
			if random.IntN(3) == 0 {
				failed++
				c.endPod(&p, corev1.PodFailed, 1)
			} else {
				succeeded++
				c.endPod(&p, corev1.PodSucceeded, 0)
			}
		}
		if random.IntN(2) == 0 {
			c.restart()
		}
	}
	j := c.awaitJob("work", batchv1.JobComplete)
	require.EqualValues(t, failed, j.Status.Failed)
	require.GreaterOrEqual(t, j.Status.Succeeded, int32(30))
	require.EqualValues(t, len(ended), j.Status.Failed+j.Status.Succeeded)
}

func TestJob_AnAdoptedPodThatIsTooManyCountsForNothing(t *testing.T) {
	t.Parallel()
	c := newSettled(t, controllers.Settings{}, "job")
	c.bareNode("node")
	pods, labels := c.client.CoreV1().Pods("default"), map[string]string{"work": "pi"}
	ends := func(name string) {
		pod := c.pod(name)
		pod.Status.Phase = corev1.PodSucceeded
		_, err := pods.UpdateStatus(c.ctx, pod, metav1.UpdateOptions{})
		require.NoError(t, err)
	}
	for _, name := range []string{"a", "b"} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
		pod.Spec = corev1.PodSpec{NodeName: "node", RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "i"}}}
		pod, err := pods.Create(c.ctx, pod, metav1.CreateOptions{})
		require.NoError(t, err)
		pod.Status.Phase = corev1.PodRunning
		_, err = pods.UpdateStatus(c.ctx, pod, metav1.UpdateOptions{})
		require.NoError(t, err)
	}
	c.startJob("pi", func(j *batchv1.Job) {
		j.Spec.ManualSelector, j.Spec.Selector, j.Spec.Template.Labels = new(true), &metav1.LabelSelector{MatchLabels: labels}, labels
	})
	surplus, kept := "a", "b"
	c.reaches("one goes", func() bool {
		if c.goes("b")() {
			surplus, kept = "b", "a"
		}
		return c.goes(surplus)()
	})
	require.Empty(t, c.pod(surplus).Finalizers, "it was let go first")
	ends(surplus)
	require.NoError(t, pods.Delete(c.ctx, surplus, *metav1.NewDeleteOptions(0)))
	ends(kept)
	j := c.awaitJob("pi", batchv1.JobComplete)
	require.EqualValues(t, 1, j.Status.Succeeded)
	require.Zero(t, j.Status.Failed)
}

func TestJob_CountsAnAdoptedPodThatHasEnded(t *testing.T) {
	t.Parallel()
	c := newSettled(t, controllers.Settings{}, "job")
	labels := map[string]string{"work": "pi"}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "early", Labels: labels}}
	pod.Spec = corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "i"}}}
	pod, err := c.client.CoreV1().Pods("default").Create(c.ctx, pod, metav1.CreateOptions{})
	require.NoError(t, err)
	pod.Status.Phase = corev1.PodSucceeded
	_, err = c.client.CoreV1().Pods("default").UpdateStatus(c.ctx, pod, metav1.UpdateOptions{})
	require.NoError(t, err)
	c.startJob("pi", func(j *batchv1.Job) {
		j.Spec.ManualSelector, j.Spec.Selector, j.Spec.Template.Labels = new(true), &metav1.LabelSelector{MatchLabels: labels}, labels
	})
	require.EqualValues(t, 1, c.awaitJob("pi", batchv1.JobComplete).Status.Succeeded)
	require.Len(t, c.pods(), 1, "its work was done when the Job came")
}
