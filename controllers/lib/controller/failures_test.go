package controller

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"
)

// failing returns n pods that have just failed.
func failing(c *clocktesting.FakeClock, from, n int) (pods []*corev1.Pod) {
	for i := range n {
		pods = append(pods, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{UID: types.UID(fmt.Sprint(from + i)),
				CreationTimestamp: metav1.NewTime(c.Now())},
			Status: corev1.PodStatus{Phase: corev1.PodFailed},
		})
	}
	return pods
}

func TestFailures_DelayAllButTheFirstReplacement(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakeClock(time.Now())
	f := NewFailures(clock, MaxFailureDelay)
	pods := failing(clock, 0, 3)
	n, wait := f.Allow("rs", 3, pods)
	require.Equal(t, 3, n, "the first at once")
	require.Zero(t, wait)
	for round, delay := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
		pods = append(pods, failing(clock, 10*(round+1), 3)...)
		n, wait = f.Allow("rs", 3, pods)
		require.Zero(t, n)
		require.Equal(t, delay, wait)
		n, _ = f.Allow("rs", 5, pods)
		require.Equal(t, 2, n, "pods beyond the failed ones are created at once")
		n, wait = f.Allow("rs", 3, nil)
		require.Zero(t, n, "failed pods count after they are deleted")
		require.Equal(t, delay, wait)
		clock.Step(delay)
		n, wait = f.Allow("rs", 3, pods)
		require.Equal(t, 3, n)
		require.Zero(t, wait)
	}
	for range 20 {
		pods = failing(clock, int(clock.Now().Unix()), 1)
		_, wait = f.Allow("rs", 1, pods)
		require.LessOrEqual(t, wait, MaxFailureDelay)
		clock.Step(MaxFailureDelay)
		_, wait = f.Allow("rs", 1, pods)
		require.Zero(t, wait)
	}
}

func TestFailures_Expire(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakeClock(time.Now())
	f := NewFailures(clock, MaxFailureDelay)
	f.Allow("rs", 1, failing(clock, 0, 1))
	_, wait := f.Allow("rs", 1, failing(clock, 1, 1))
	require.NotZero(t, wait)
	f.Forget("rs")
	_, wait = f.Allow("rs", 1, failing(clock, 2, 1))
	require.Zero(t, wait)
	clock.Step(2*MaxFailureDelay + 1)
	_, wait = f.Allow("rs", 1, failing(clock, 3, 1))
	require.Zero(t, wait)
	clock.Step(2*MaxFailureDelay + 1)
	f.Allow("rs", 0, nil)
	require.Empty(t, f.owners)
}

func TestFailures_IgnorePodsThatRanForLong(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakeClock(time.Now())
	f := NewFailures(clock, MaxFailureDelay)
	for i := range 5 {
		evicted := failing(clock, i, 1)
		clock.Step(stableAge + time.Second)
		n, wait := f.Allow("rs", 1, evicted)
		require.Equal(t, 1, n)
		require.Zero(t, wait)
	}
	require.Empty(t, f.owners)
}

func TestFailures_StartAgainWhenReplacementsBecomeReady(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakeClock(time.Now())
	f := NewFailures(clock, MaxFailureDelay)
	f.Allow("rs", 1, failing(clock, 0, 1))
	for i := range 10 {
		pods := failing(clock, 1+i, 1)
		ready := &corev1.Pod{ObjectMeta: pods[0].ObjectMeta}
		ready.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		_, wait := f.Allow("rs", 1, append(pods, ready))
		require.Equal(t, time.Second, wait)
		clock.Step(time.Second)
		_, wait = f.Allow("rs", 1, append(pods, ready))
		require.Zero(t, wait)
	}
}

func TestFailures_AreIndependentByPlace(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakeClock(time.Now())
	f := NewFailures(clock, MaxFailureDelay)
	require.Zero(t, f.Due("set", "a"))
	require.Zero(t, f.Due("set", "b"))
	require.Equal(t, time.Second, f.Due("set", "a"))
	for i := range 5 * maxPlaces {
		f.Due("set", fmt.Sprint(i))
		clock.Step(time.Second)
	}
	require.LessOrEqual(t, len(f.owners["set"]), maxPlaces+1, "places are not kept for ever")
}

func TestFailures_DelayTheReplacementOfAFailedPod(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakeClock(time.Now())
	f := NewFailures(clock, 4*time.Second)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web-0", CreationTimestamp: metav1.NewTime(clock.Now())}}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
		Reason: "DeletionByTaintManager"}}
	require.False(t, f.FailedSoon(pod), "it is still there")
	pod.DeletionTimestamp = new(metav1.NewTime(clock.Now()))
	require.True(t, f.FailedSoon(pod))
	clock.Step(2 * stableAge)
	require.False(t, f.FailedSoon(pod), "it has proved that it can run")

	require.Zero(t, f.Replace("set", "web-0"), "nothing has failed")
	for _, wait := range []time.Duration{0, time.Second, 2 * time.Second, 4 * time.Second, 4 * time.Second} {
		f.Failed("set", "web-0")
		f.Failed("set", "web-0")
		require.Equal(t, wait, f.Replace("set", "web-0"))
		clock.Step(wait)
		require.Zero(t, f.Replace("set", "web-0"))
		require.Zero(t, f.Replace("set", "web-0"), "the replacement is there")
		require.Zero(t, f.Replace("set", "web-1"))
	}
}

func TestPruneFailed_KeepsTheNewest(t *testing.T) {
	t.Parallel()
	client := fake.NewSimpleClientset()
	owner := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "owner", UID: "owner"}}
	ref := []metav1.OwnerReference{{UID: "owner", Controller: new(true)}}
	born := time.Now()
	pod := func(name string, phase corev1.PodPhase, refs []metav1.OwnerReference) *corev1.Pod {
		born = born.Add(time.Second)
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, UID: types.UID(name),
			OwnerReferences: refs, CreationTimestamp: metav1.NewTime(born)},
			Status: corev1.PodStatus{Phase: phase}}
	}
	pods := []*corev1.Pod{pod("orphan", corev1.PodFailed, nil), pod("running", corev1.PodRunning, ref),
		pod("succeeded", corev1.PodSucceeded, ref)}
	for i := range KeepFailed {
		pods = append(pods, pod(fmt.Sprint("failed-", i), corev1.PodFailed, ref))
	}
	require.NoError(t, PruneFailed(t.Context(), client, owner, pods))
	require.Empty(t, client.Actions())
	pods = append(pods, pod("newer", corev1.PodFailed, ref), pod("newest", corev1.PodFailed, ref))
	require.NoError(t, PruneFailed(t.Context(), client, owner, pods))
	var deleted []string
	for _, a := range client.Actions() {
		deleted = append(deleted, a.GetVerb()+" "+a.(k8stesting.DeleteAction).GetName())
	}
	require.ElementsMatch(t, []string{"delete failed-0", "delete failed-1"}, deleted)
}
