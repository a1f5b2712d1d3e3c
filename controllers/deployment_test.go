package controllers_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
)

func rolling(surge, unavailable string) appsv1.DeploymentStrategy {
	s, u := intstr.Parse(surge), intstr.Parse(unavailable)
	return appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType,
		RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &s, MaxUnavailable: &u}}
}

func TestDeployment_CreatesItsPodsAndTellsSo(t *testing.T) {
	t.Parallel()
	c := newCluster(t, always)
	c.deploy("web", 3, nil)
	d := c.awaitRollout("web")

	require.Equal(t, "1", d.Annotations["deployment.kubernetes.io/revision"])
	require.Equal(t, corev1.ConditionTrue, condition(d, appsv1.DeploymentAvailable).Status)
	require.EqualValues(t, 3, d.Status.ReadyReplicas)
	require.Zero(t, *d.Status.TerminatingReplicas)
	rs := c.replicaSet("one")
	hash := rs.Labels["pod-template-hash"]
	require.NotEmpty(t, hash)
	require.Equal(t, "web-"+hash, rs.Name)
	require.Equal(t, hash, rs.Spec.Selector.MatchLabels["pod-template-hash"])
	require.Equal(t, "3", rs.Annotations["deployment.kubernetes.io/desired-replicas"])
	require.Equal(t, "4", rs.Annotations["deployment.kubernetes.io/max-replicas"])
	for _, pod := range c.pods() {
		require.True(t, strings.HasPrefix(pod.Name, rs.Name+"-"))
		require.True(t, metav1.IsControlledBy(&pod, rs))
	}
	c.awaitEvent("ScalingReplicaSet", fmt.Sprintf("Scaled up replica set %s from 0 to 3", rs.Name))
	c.awaitEvent("SuccessfulCreate", "Created pod: "+rs.Name+"-")
}

// TestDeployment_RollsWithinItsBounds looks at every state that was ever stored.
func TestDeployment_RollsWithinItsBounds(t *testing.T) {
	for _, bounds := range []struct {
		surge, unavailable string
		most, least        int
	}{
		{"25%", "25%", 13, 8}, {"1", "0", 11, 10}, {"0", "3", 10, 7}, {"0", "1%", 10, 9}, {"100%", "0", 20, 10},
	} {
		t.Run(bounds.surge+" "+bounds.unavailable, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, always)
			c.deploy("web", 10, func(d *appsv1.Deployment) { d.Spec.Strategy = rolling(bounds.surge, bounds.unavailable) })
			c.awaitRollout("web")
			from := c.version()
			c.edit("web", image("two"))
			c.awaitRollout("web")
			require.EqualValues(t, 0, *c.replicaSet("one").Spec.Replicas)
			least, most := c.extremes(from)
			require.GreaterOrEqual(t, least, bounds.least, "ready pods")
			require.LessOrEqual(t, most, bounds.most, "pods")
		})
	}
}

// extremes are the least number of ready pods and the most pods after a version. Those that were told to end do not count.
func (c *cluster) extremes(from string) (least, most int) {
	pods := map[string]*corev1.Pod{}
	after, counts := versionOf(c, from), false
	least = 1 << 30
	for _, e := range c.podChanges(c.from) {
		pod := e.Object.(*corev1.Pod)
		if counts = counts || versionOf(c, pod.ResourceVersion) > after; counts {
			n := readyOf(slices.Collect(maps.Values(pods)))
			least, most = min(least, n), max(most, len(pods))
		}
		pods[pod.Name] = pod
		if e.Type == watch.Deleted || pod.DeletionTimestamp != nil {
			delete(pods, pod.Name)
		}
	}
	return least, most
}

func versionOf(t testing.TB, text string) uint64 {
	n, err := strconv.ParseUint(text, 10, 64)
	require.NoError(t, err)
	return n
}

func TestDeployment_UndoReusesTheOldReplicaSet(t *testing.T) {
	t.Parallel()
	c := newCluster(t, always)
	c.deploy("web", 2, nil)
	c.awaitRollout("web")
	first := c.replicaSet("one").Name
	c.edit("web", image("two"))
	c.awaitRollout("web")
	// What "kubectl rollout undo" does: the old template, hash and all, is written back.
	c.edit("web", func(d *appsv1.Deployment) {
		d.Spec.Template = *c.replicaSet("one").Spec.Template.DeepCopy()
		delete(d.Spec.Template.Labels, "pod-template-hash")
	})
	d := c.awaitRollout("web")

	require.Len(t, c.replicaSets(), 2)
	rs := c.replicaSet("one")
	require.Equal(t, first, rs.Name)
	require.Equal(t, "3", rs.Annotations["deployment.kubernetes.io/revision"])
	require.Equal(t, "1", rs.Annotations["deployment.kubernetes.io/revision-history"])
	require.Equal(t, "3", d.Annotations["deployment.kubernetes.io/revision"])
}

func TestDeployment_PausedChangesNothingButItsSize(t *testing.T) {
	t.Parallel()
	c := newCluster(t, always)
	c.deploy("web", 2, nil)
	c.awaitRollout("web")
	c.edit("web", func(d *appsv1.Deployment) {
		d.Spec.Paused = true
		image("two")(d)
		scale(4)(d)
	})
	c.eventually("scaled", func() bool {
		d := c.deployment("web")
		return d.Status.AvailableReplicas == 4 && d.Status.ObservedGeneration == d.Generation
	})
	require.Nil(t, c.replicaSet("two"))
	require.Equal(t, "DeploymentPaused", condition(c.deployment("web"), appsv1.DeploymentProgressing).Reason)
	c.edit("web", func(d *appsv1.Deployment) { d.Spec.Paused = false })
	c.awaitRollout("web")
	require.EqualValues(t, 4, c.replicaSet("two").Status.AvailableReplicas)
}

func TestDeployment_ScalesInProportionDuringARollout(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	works := map[string]bool{"one": true}
	c := newCluster(t, func(pod *corev1.Pod) bool {
		mu.Lock()
		defer mu.Unlock()
		return works[pod.Spec.Containers[0].Image]
	})
	c.deploy("web", 10, func(d *appsv1.Deployment) { d.Spec.Strategy = rolling("3", "2") })
	c.awaitRollout("web")
	c.edit("web", image("broken"))
	sizes := func() (one, broken int32) {
		if rs := c.replicaSet("broken"); rs != nil {
			broken = *rs.Spec.Replicas
		}
		return *c.replicaSet("one").Spec.Replicas, broken
	}
	c.eventually("stuck", func() bool { one, broken := sizes(); return one == 8 && broken == 5 })
	// The documentation's example: of 5 more, 3 go to the larger and 2 to the smaller.
	c.edit("web", scale(15))
	c.eventually("shared out", func() bool { one, broken := sizes(); return one == 11 && broken == 7 })
	// Rollover: a third template takes the place of the one that never worked.
	mu.Lock()
	works["three"] = true
	mu.Unlock()
	c.edit("web", image("three"))
	c.awaitRollout("web")
	one, broken := sizes()
	require.Zero(t, one+broken)
}

func TestDeployment_RecreateEndsAllOldPodsFirst(t *testing.T) {
	t.Parallel()
	c := newCluster(t, always)
	c.deploy("web", 3, func(d *appsv1.Deployment) {
		d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
	})
	c.awaitRollout("web")
	c.edit("web", image("two"))
	c.awaitRollout("web")

	running := map[string]string{}
	for _, e := range c.podChanges(c.from) {
		pod := e.Object.(*corev1.Pod)
		if e.Type == watch.Deleted {
			delete(running, pod.Name)
			continue
		}
		running[pod.Name] = pod.Spec.Containers[0].Image
		images := slices.Compact(slices.Sorted(maps.Values(running)))
		require.Len(t, images, 1, "pods of both templates at once")
	}
}

func TestDeployment_KeepsAsMuchHistoryAsAsked(t *testing.T) {
	t.Parallel()
	c := newCluster(t, always)
	c.deploy("web", 1, func(d *appsv1.Deployment) { d.Spec.RevisionHistoryLimit = new(int32(1)) })
	c.awaitRollout("web")
	for _, name := range []string{"two", "three", "four"} {
		c.edit("web", image(name))
		c.awaitRollout("web")
	}
	c.eventually("history cleaned up", func() bool { return len(c.replicaSets()) == 2 })
	require.NotNil(t, c.replicaSet("three"))
	require.NotNil(t, c.replicaSet("four"))
}

func TestDeployment_AdoptsAndReleasesReplicaSets(t *testing.T) {
	t.Parallel()
	c := newCluster(t, always)
	d := c.deploy("web", 2, nil)
	c.awaitRollout("web")
	require.NoError(t, c.client.AppsV1().Deployments("default").Delete(c.ctx, "web",
		metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationOrphan)}))
	c.eventually("orphaned and gone", func() bool {
		list, err := c.client.AppsV1().Deployments("default").List(c.ctx, metav1.ListOptions{})
		require.NoError(t, err)
		return len(list.Items) == 0 && len(c.replicaSet("one").OwnerReferences) == 0
	})
	orphan := c.replicaSet("one")
	again := c.deploy("web", 2, nil)
	require.NotEqual(t, d.UID, again.UID)
	c.awaitRollout("web")
	adopted := c.replicaSet("one")
	require.Equal(t, orphan.UID, adopted.UID)
	require.True(t, metav1.IsControlledBy(adopted, again))
	require.Len(t, c.replicaSets(), 1)
	require.Len(t, c.pods(), 2)
}

func TestDeployment_CountsHashCollisions(t *testing.T) {
	t.Parallel()
	c := newCluster(t, always)
	c.deploy("web", 1, nil)
	c.awaitRollout("web")
	name := c.replicaSet("one").Name
	require.NoError(t, c.client.AppsV1().Deployments("default").Delete(c.ctx, "web", metav1.DeleteOptions{}))
	c.eventually("collected", func() bool { return len(c.replicaSets()) == 0 && len(c.pods()) == 0 })
	squatter := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: appsv1.ReplicaSetSpec{Replicas: new(int32(0)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "squatter"}}}}},
	}
	_, err := c.client.AppsV1().ReplicaSets("default").Create(c.ctx, squatter, metav1.CreateOptions{})
	require.NoError(t, err)
	c.deploy("web", 1, nil)
	d := c.awaitRollout("web")
	require.EqualValues(t, 1, *d.Status.CollisionCount)
	require.NotEqual(t, name, c.replicaSet("one").Name)
}

// TestDeployment_RollsBackWhatAnAnnotationAsksFor is how clients of extensions/v1beta1 rolled back.
func TestDeployment_RollsBackWhatAnAnnotationAsksFor(t *testing.T) {
	t.Parallel()
	c := newCluster(t, always)
	c.deploy("web", 1, nil)
	c.awaitRollout("web")
	for _, name := range []string{"two", "three"} {
		c.edit("web", image(name))
		c.awaitRollout("web")
	}
	ask := func(revision string) {
		c.edit("web", func(d *appsv1.Deployment) { d.Annotations[appsv1.DeprecatedRollbackTo] = revision })
		c.eventually("answered", func() bool { return c.deployment("web").Annotations[appsv1.DeprecatedRollbackTo] == "" })
	}
	ask("1")
	c.awaitRollout("web")
	require.Equal(t, "one", c.deployment("web").Spec.Template.Spec.Containers[0].Image)
	c.awaitEvent("DeploymentRollback", `Rolled back deployment "web" to revision 1`)
	ask("0") // the last but one
	require.Equal(t, "three", c.deployment("web").Spec.Template.Spec.Containers[0].Image)
	d := c.awaitRollout("web")
	ask(d.Annotations["deployment.kubernetes.io/revision"])
	c.awaitEvent("DeploymentRollbackTemplateUnchanged", `The rollback revision contains the same template as current deployment "web"`)
	ask("77")
	c.awaitEvent("DeploymentRollbackRevisionNotFound", "Unable to find the revision to rollback to.")
	require.Len(t, c.replicaSets(), 3)
}
