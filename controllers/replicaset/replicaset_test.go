package replicaset_test

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
	"github.com/coxswain-dev/coxswain/internal/series/seriestest"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

func TestReplicaSet_CreatesAndDeletesExactlyTheNeededPods(t *testing.T) {
	t.Parallel()
	c := controllertest.New(t, controllertest.Always, "replicaset")
	c.Replicate("web", 40, nil)
	c.AwaitReplicas("web", 40)
	require.Equal(t, 40, c.CountPods(watch.Added))
	_, err := c.Client.AppsV1().ReplicaSets("default").Patch(c.Context(), "web", "application/merge-patch+json",
		[]byte(`{"spec":{"replicas":15}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	c.AwaitReplicas("web", 15)
	c.Eventually("the other pods are deleted", func() bool { return len(c.Pods()) == 15 })
	require.Equal(t, 25, c.CountPods(watch.Deleted))
	require.Equal(t, 40, c.CountPods(watch.Added))
	c.AwaitMetric(25, "replicaset_controller_sorting_deletion_age_ratio")
	require.GreaterOrEqual(t, seriestest.Sum(t, c.Metrics, "replicaset_controller_sorting_deletion_age_ratio"), 25.0,
		"none is younger than the youngest")
}

func TestReplicaSet_ReplacesEndedAndReleasedPods(t *testing.T) {
	t.Parallel()
	c := controllertest.New(t, controllertest.Always, "replicaset")
	rs := c.Replicate("web", 3, nil)
	c.AwaitReplicas("web", 3)
	pods := c.Pods()
	require.NoError(t, c.Client.CoreV1().Pods("default").Delete(c.Context(), pods[0].Name, metav1.DeleteOptions{}))
	pods[1].Status.Phase = corev1.PodFailed
	_, err := c.Client.CoreV1().Pods("default").UpdateStatus(c.Context(), &pods[1], metav1.UpdateOptions{})
	require.NoError(t, err)
	pods[2].Labels = map[string]string{"app": "debug"}
	_, err = c.Client.CoreV1().Pods("default").Update(c.Context(), &pods[2], metav1.UpdateOptions{})
	require.NoError(t, err)
	c.Eventually("three new pods", func() bool { return c.CountPods(watch.Added) == 6 })
	c.AwaitReplicas("web", 3)
	c.Eventually("released", func() bool {
		pod, err := c.Client.CoreV1().Pods("default").Get(c.Context(), pods[2].Name, metav1.GetOptions{})
		require.NoError(t, err)
		return !metav1.IsControlledBy(pod, rs)
	})
}

func TestReplicaSet_AdoptsPodsThatMatch(t *testing.T) {
	t.Parallel()
	c := controllertest.New(t, controllertest.Always, "replicaset")
	for _, name := range []string{"a", "b"} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "web"}},
			Spec: controllertest.OnePod()}
		_, err := c.Client.CoreV1().Pods("default").Create(c.Context(), pod, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	c.Eventually("ready", func() bool {
		for _, pod := range c.Pods() {
			if !controllertest.PodReady(&pod) {
				return false
			}
		}
		return true
	})
	rs := c.Replicate("web", 3, nil)
	c.AwaitReplicas("web", 3)
	require.Equal(t, 3, c.CountPods(watch.Added))
	for _, pod := range c.Pods() {
		require.True(t, metav1.IsControlledBy(&pod, rs), pod.Name)
	}
}

func TestReplicaSet_ReportsFailedCreations(t *testing.T) {
	t.Parallel()
	c := controllertest.New(t, controllertest.Always, "replicaset")
	var full atomic.Bool
	full.Store(true)
	c.Faults.RefuseWhile(full.Load, http.MethodPost, "pods")
	c.Replicate("web", 100, nil)
	c.AwaitEvent("FailedCreate", "Error creating: exceeded quota")
	c.Eventually("condition", func() bool {
		rs, err := c.Client.AppsV1().ReplicaSets("default").Get(c.Context(), "web", metav1.GetOptions{})
		require.NoError(t, err)
		return len(rs.Status.Conditions) == 1 && rs.Status.Conditions[0].Reason == "FailedCreate"
	})
	require.Less(t, c.Faults.Writes(http.MethodPost, "pods"), 50, "slow start")
	full.Store(false)
	rs := c.AwaitReplicas("web", 100)
	require.Equal(t, 100, c.CountPods(watch.Added))
	c.Eventually("the condition is removed", func() bool {
		rs, _ = c.Client.AppsV1().ReplicaSets("default").Get(c.Context(), "web", metav1.GetOptions{})
		return len(rs.Status.Conditions) == 0
	})
}

func TestReplicaSet_CountsPodsAsAvailableAfterMinReadySeconds(t *testing.T) {
	t.Parallel()
	c := controllertest.NewClocked(t, 0, "replicaset")
	c.CreateNode("node", nil)
	c.StartNode(controllertest.Always)
	c.Replicate("web", 3, func(rs *appsv1.ReplicaSet) { rs.Spec.MinReadySeconds = 3600 })
	status := func() appsv1.ReplicaSetStatus { return c.ReplicaSetOf("web").Status }
	c.Reaches("ready", func() bool { return status().ReadyReplicas == 3 })
	require.Zero(t, status().AvailableReplicas)
	c.Passing(10*time.Minute, "available", func() bool { return status().AvailableReplicas == 3 })
}
