package controllers_test

import (
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// newRandom tells its seed, so that a failure can be had again.
func newRandom(t testing.TB) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, seed))
}

// refuseNext has the next n of such writes of the controllers refused.
func (c *cluster) refuseNext(n int64, verb, plural string) {
	var left atomic.Int64
	left.Store(n)
	c.refuseWhile(func() bool { return left.Add(-1) >= 0 }, verb, plural)
}

func (c *cluster) refuseWhile(f func() bool, verb, plural string) {
	c.faults.mu.Lock()
	defer c.faults.mu.Unlock()
	c.faults.refuse = func(v, p string) bool { return v == verb && p == plural && f() }
}

func (c *cluster) replicate(name string, n int32, edit func(*appsv1.ReplicaSet)) *appsv1.ReplicaSet {
	labels := map[string]string{"app": name}
	rs := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.ReplicaSetSpec{Replicas: &n, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: name}}}}},
	}
	if edit != nil {
		edit(rs)
	}
	rs, err := c.client.AppsV1().ReplicaSets("default").Create(c.ctx, rs, metav1.CreateOptions{})
	require.NoError(c, err)
	return rs
}

func (c *cluster) awaitReplicas(name string, n int32) *appsv1.ReplicaSet {
	c.Helper()
	var rs *appsv1.ReplicaSet
	c.eventually(name+" has its replicas", func() bool {
		var err error
		rs, err = c.client.AppsV1().ReplicaSets("default").Get(c.ctx, name, metav1.GetOptions{})
		require.NoError(c, err)
		return rs.Status.AvailableReplicas == n && rs.Status.Replicas == n
	})
	return rs
}

func TestReplicaSet_MakesNoPodTooManyAndEndsNoneTooMany(t *testing.T) {
	t.Parallel()
	c := newCluster(t, always)
	c.replicate("web", 40, nil)
	c.awaitReplicas("web", 40)
	require.Equal(t, 40, c.countPods(watch.Added))
	_, err := c.client.AppsV1().ReplicaSets("default").Patch(c.ctx, "web", "application/merge-patch+json",
		[]byte(`{"spec":{"replicas":15}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	c.awaitReplicas("web", 15)
	c.eventually("the others are gone", func() bool { return len(c.pods()) == 15 })
	require.Equal(t, 25, c.countPods(watch.Deleted))
	require.Equal(t, 40, c.countPods(watch.Added))
}

func TestReplicaSet_ReplacesPodsThatEndOrAreTakenAway(t *testing.T) {
	t.Parallel()
	c := newCluster(t, always)
	rs := c.replicate("web", 3, nil)
	c.awaitReplicas("web", 3)
	pods := c.pods()
	require.NoError(t, c.client.CoreV1().Pods("default").Delete(c.ctx, pods[0].Name, metav1.DeleteOptions{}))
	pods[1].Status.Phase = corev1.PodFailed
	_, err := c.client.CoreV1().Pods("default").UpdateStatus(c.ctx, &pods[1], metav1.UpdateOptions{})
	require.NoError(t, err)
	pods[2].Labels = map[string]string{"app": "debug"}
	_, err = c.client.CoreV1().Pods("default").Update(c.ctx, &pods[2], metav1.UpdateOptions{})
	require.NoError(t, err)
	c.eventually("three new pods", func() bool { return c.countPods(watch.Added) == 6 })
	c.awaitReplicas("web", 3)
	c.eventually("released", func() bool {
		pod, err := c.client.CoreV1().Pods("default").Get(c.ctx, pods[2].Name, metav1.GetOptions{})
		require.NoError(t, err)
		return !metav1.IsControlledBy(pod, rs)
	})
}

func TestReplicaSet_AdoptsPodsThatMatch(t *testing.T) {
	t.Parallel()
	c := newCluster(t, always)
	for _, name := range []string{"a", "b"} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "web"}}, Spec: onePod}
		_, err := c.client.CoreV1().Pods("default").Create(c.ctx, pod, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	c.eventually("ready", func() bool {
		for _, pod := range c.pods() {
			if !podReady(&pod) {
				return false
			}
		}
		return true
	})
	rs := c.replicate("web", 3, nil)
	c.awaitReplicas("web", 3)
	require.Equal(t, 3, c.countPods(watch.Added))
	for _, pod := range c.pods() {
		require.True(t, metav1.IsControlledBy(&pod, rs), pod.Name)
	}
}

func TestReplicaSet_TellsWhatKeepsItFromCreating(t *testing.T) {
	t.Parallel()
	c := newCluster(t, always)
	var full atomic.Bool
	full.Store(true)
	c.refuseWhile(full.Load, http.MethodPost, "pods")
	c.replicate("web", 100, nil)
	c.awaitEvent("FailedCreate", "Error creating: exceeded quota")
	c.eventually("condition", func() bool {
		rs, err := c.client.AppsV1().ReplicaSets("default").Get(c.ctx, "web", metav1.GetOptions{})
		require.NoError(t, err)
		return len(rs.Status.Conditions) == 1 && rs.Status.Conditions[0].Reason == "FailedCreate"
	})
	c.faults.mu.Lock()
	require.Less(t, c.faults.writes["POST pods"], 50, "slow start")
	c.faults.mu.Unlock()
	full.Store(false)
	rs := c.awaitReplicas("web", 100)
	require.Equal(t, 100, c.countPods(watch.Added))
	c.eventually("condition is gone", func() bool {
		rs, _ = c.client.AppsV1().ReplicaSets("default").Get(c.ctx, "web", metav1.GetOptions{})
		return len(rs.Status.Conditions) == 0
	})
}

// BenchmarkDeployment is one Deployment of 1,000 from nothing to ready, the API server and a simple node included.
func BenchmarkDeployment(b *testing.B) {
	c := newCluster(b, always)
	for b.Loop() {
		c.deploy("web", 1000, nil)
		c.awaitRollout("web")
		b.StopTimer()
		require.NoError(b, c.client.AppsV1().Deployments("default").Delete(c.ctx, "web", metav1.DeleteOptions{}))
		c.eventually("gone", func() bool { return len(c.pods()) == 0 && len(c.replicaSets()) == 0 })
		b.StartTimer()
	}
}
