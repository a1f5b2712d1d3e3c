package job

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// tracking is one sync of a Job with two ended pods, a and b. It records every write.
type tracking struct {
	*sync
	server *fake.Clientset
	refuse func(verb, resource, name string) bool
	writes []string
}

var errRefused = errors.New("refused")

func newTracking(t *testing.T) *tracking {
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pi", UID: "pi-1"}}
	j.Spec.Parallelism, j.Spec.Completions = new(int32(2)), new(int32(5))
	ended := func(name string, phase corev1.PodPhase) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name),
			Finalizers: []string{batchv1.JobTrackingFinalizer}}, Status: corev1.PodStatus{Phase: phase}}
	}
	pods := []*corev1.Pod{ended("a", corev1.PodSucceeded), ended("b", corev1.PodFailed)}
	tr := &tracking{server: fake.NewClientset(j, pods[0], pods[1]),
		refuse: func(string, string, string) bool { return false }}
	tr.server.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		name := ""
		switch a := action.(type) {
		case clienttesting.PatchAction:
			name = a.GetName()
		case clienttesting.UpdateAction:
			j := a.GetObject().(*batchv1.Job)
			name = j.Name
		}
		if tr.refuse(action.GetVerb(), action.GetResource().Resource, name) {
			return true, nil, errRefused
		}
		switch a := action.(type) {
		case clienttesting.PatchAction:
			tr.writes = append(tr.writes, "release "+name)
		case clienttesting.UpdateAction:
			tr.writes = append(tr.writes, describeCounts(a.GetObject().(*batchv1.Job)))
		}
		return false, nil, nil
	})
	clock := clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0))
	tr.sync = &sync{key: "default/pi", job: j.DeepCopy(), was: j.Status.DeepCopy(), pods: pods, now: clock.Now(),
		jobs: &jobs{client: func() kubernetes.Interface { return tr.server }, clock: clock,
			recorder: &record.FakeRecorder{}, metrics: newMetrics(nil),
			OwnerExpectations: controller.NewOwnerExpectations(clock, controller.MaxFailureDelay)}}
	return tr
}

// describeCounts formats the status: the uids on the list, and the counters.
func describeCounts(j *batchv1.Job) string {
	u := j.Status.UncountedTerminatedPods
	text := "status"
	for _, uid := range slices.Concat(u.Succeeded, u.Failed) {
		text += " " + string(uid)
	}
	return text + " " + string(rune('0'+j.Status.Succeeded)) + "/" + string(rune('0'+j.Status.Failed))
}

// sorted returns the writes, with finalizers that were removed in parallel in order.
func (tr *tracking) sorted() []string {
	writes := slices.Clone(tr.writes)
	for i := 0; i+1 < len(writes); i++ {
		if writes[i] == "release b" && writes[i+1] == "release a" {
			writes[i], writes[i+1] = writes[i+1], writes[i]
		}
	}
	return writes
}

func (tr *tracking) finalizers(t *testing.T, name string) []string {
	pod, err := tr.server.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	return pod.Finalizers
}

// TestTrack_ListsThenReleasesThenCounts checks the order of writes that counts a pod once, wherever the
// controller is killed.
func TestTrack_ListsThenReleasesThenCounts(t *testing.T) {
	t.Parallel()
	tr := newTracking(t)
	require.NoError(t, tr.track(t.Context()))
	require.Equal(t, []string{"status a b 0/0", "release a", "release b", "status 1/1"}, tr.sorted())
	require.Empty(t, tr.finalizers(t, "a"))
	require.Empty(t, tr.finalizers(t, "b"))
}

func TestTrack_ReleasesOnlyListedPods(t *testing.T) {
	t.Parallel()
	tr := newTracking(t)
	tr.refuse = func(verb, _, _ string) bool { return verb == "update" }
	require.ErrorIs(t, tr.track(t.Context()), errRefused)
	require.Empty(t, tr.writes)
	require.NotEmpty(t, tr.finalizers(t, "a"))
	require.NotEmpty(t, tr.finalizers(t, "b"))
}

func TestTrack_CountsOnlyReleasedPods(t *testing.T) {
	t.Parallel()
	tr := newTracking(t)
	tr.refuse = func(verb, _, name string) bool { return verb == "patch" && name == "b" }
	require.ErrorIs(t, tr.track(t.Context()), errRefused)
	require.Equal(t, []string{"status a b 0/0", "release a", "status b 1/0"}, tr.writes)
	require.NotEmpty(t, tr.finalizers(t, "b"))
}

// TestTrack_ContinuesAfterARestart starts with the states that a killed controller may leave.
func TestTrack_ContinuesAfterARestart(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		released []string
		want     []string
	}{
		"before any is released":  {nil, []string{"release a", "release b", "status 1/1"}},
		"when one is released":    {[]string{"a"}, []string{"status b 1/0", "release b", "status 1/1"}},
		"before they are counted": {[]string{"a", "b"}, []string{"status 1/1"}},
	} {
		tr := newTracking(t)
		noted := &batchv1.UncountedTerminatedPods{Succeeded: []types.UID{"a"}, Failed: []types.UID{"b"}}
		tr.job.Status.UncountedTerminatedPods, tr.was.UncountedTerminatedPods = noted, noted.DeepCopy()
		tr.job.Status.Active, tr.job.Status.Ready, tr.job.Status.Terminating = 0, new(int32), new(int32)
		tr.was = tr.job.Status.DeepCopy()
		for _, pod := range tr.pods {
			if slices.Contains(c.released, pod.Name) {
				pod.Finalizers = nil
			}
		}
		require.NoError(t, tr.track(t.Context()), name)
		require.Equal(t, c.want, tr.sorted(), name)
	}
}

func TestFinish_WaitsForPodsThatAreStillTracked(t *testing.T) {
	t.Parallel()
	for verdict, final := range map[batchv1.JobConditionType]batchv1.JobConditionType{
		batchv1.JobSuccessCriteriaMet: batchv1.JobComplete,
		batchv1.JobFailureTarget:      batchv1.JobFailed,
	} {
		tr := newTracking(t)
		tr.verdict = &batchv1.JobCondition{Type: verdict, Status: corev1.ConditionTrue}
		tr.describe()
		tr.finish()
		require.Nil(t, condition(tr.job, final), "%s: neither pod is counted", verdict)
		tr.pods[0].Finalizers = nil
		tr.finish()
		require.Nil(t, condition(tr.job, final), "%s: one pod is not counted", verdict)
		tr.pods[1].Finalizers = nil
		tr.finish()
		require.NotNil(t, condition(tr.job, final), verdict)
	}
}
