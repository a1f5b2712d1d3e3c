package deployment_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

// newCluster starts the controllers that a Deployment needs.
func newCluster(t testing.TB, ready func(*corev1.Pod) bool) *controllertest.Cluster {
	return controllertest.New(t, ready, "deployment", "replicaset", "garbagecollector")
}

func TestDeployment_CreatesPodsAndReportsStatus(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controllertest.Always)
	c.Deploy("web", 3, nil)
	d := c.AwaitRollout("web")

	require.Equal(t, "1", d.Annotations["deployment.kubernetes.io/revision"])
	require.Equal(t, corev1.ConditionTrue, controllertest.DeploymentCondition(d, appsv1.DeploymentAvailable).Status)
	require.EqualValues(t, 3, d.Status.ReadyReplicas)
	require.Zero(t, *d.Status.TerminatingReplicas)
	rs := c.ReplicaSetOf("one")
	hash := rs.Labels["pod-template-hash"]
	require.NotEmpty(t, hash)
	require.Equal(t, "web-"+hash, rs.Name)
	require.Equal(t, hash, rs.Spec.Selector.MatchLabels["pod-template-hash"])
	require.Equal(t, "3", rs.Annotations["deployment.kubernetes.io/desired-replicas"])
	require.Equal(t, "4", rs.Annotations["deployment.kubernetes.io/max-replicas"])
	for _, pod := range c.Pods() {
		require.True(t, strings.HasPrefix(pod.Name, rs.Name+"-"))
		require.True(t, metav1.IsControlledBy(&pod, rs))
	}
	c.AwaitEvent("ScalingReplicaSet", fmt.Sprintf("Scaled up replica set %s from 0 to 3", rs.Name))
	c.AwaitEvent("SuccessfulCreate", "Created pod: "+rs.Name+"-")
}

// TestDeployment_RollsWithinItsBounds checks every state that was ever stored.
func TestDeployment_RollsWithinItsBounds(t *testing.T) {
	for _, bounds := range []struct {
		surge, unavailable string
		highest, lowest    int
	}{
		{"25%", "25%", 13, 8}, {"1", "0", 11, 10}, {"0", "3", 10, 7}, {"0", "1%", 10, 9}, {"100%", "0", 20, 10},
	} {
		t.Run(bounds.surge+" "+bounds.unavailable, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, controllertest.Always)
			c.Deploy("web", 10, func(d *appsv1.Deployment) {
				d.Spec.Strategy = controllertest.RollingUpdate(bounds.surge, bounds.unavailable)
			})
			c.AwaitRollout("web")
			from := c.Version()
			c.EditDeployment("web", controllertest.Image("two"))
			c.AwaitRollout("web")
			require.EqualValues(t, 0, *c.ReplicaSetOf("one").Spec.Replicas)
			lowest, highest := extremes(c, from)
			require.GreaterOrEqual(t, lowest, bounds.lowest, "ready pods")
			require.LessOrEqual(t, highest, bounds.highest, "pods")
		})
	}
}

// extremes returns the lowest number of ready pods and the highest number of pods since a version. Pods being
// deleted do not count.
func extremes(c *controllertest.Cluster, from string) (lowest, highest int) {
	pods := map[string]*corev1.Pod{}
	after, counts := controllertest.VersionNumber(c, from), false
	lowest = 1 << 30
	for _, e := range c.PodChanges(c.Began) {
		pod := e.Object.(*corev1.Pod)
		if counts = counts || controllertest.VersionNumber(c, pod.ResourceVersion) > after; counts {
			n := controllertest.CountReady(slices.Collect(maps.Values(pods)))
			lowest, highest = min(lowest, n), max(highest, len(pods))
		}
		pods[pod.Name] = pod
		if e.Type == watch.Deleted || pod.DeletionTimestamp != nil {
			delete(pods, pod.Name)
		}
	}
	return lowest, highest
}

func TestDeployment_UndoReusesTheOldReplicaSet(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controllertest.Always)
	c.Deploy("web", 2, nil)
	c.AwaitRollout("web")
	first := c.ReplicaSetOf("one").Name
	c.EditDeployment("web", controllertest.Image("two"))
	c.AwaitRollout("web")
	// Write the old template back, including its hash, as "kubectl rollout undo" does.
	c.EditDeployment("web", func(d *appsv1.Deployment) {
		d.Spec.Template = *c.ReplicaSetOf("one").Spec.Template.DeepCopy()
		delete(d.Spec.Template.Labels, "pod-template-hash")
	})
	d := c.AwaitRollout("web")

	require.Len(t, c.ReplicaSets(), 2)
	rs := c.ReplicaSetOf("one")
	require.Equal(t, first, rs.Name)
	require.Equal(t, "3", rs.Annotations["deployment.kubernetes.io/revision"])
	require.Equal(t, "1", rs.Annotations["deployment.kubernetes.io/revision-history"])
	require.Equal(t, "3", d.Annotations["deployment.kubernetes.io/revision"])
}

func TestDeployment_PausedOnlyScales(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controllertest.Always)
	c.Deploy("web", 2, nil)
	c.AwaitRollout("web")
	c.EditDeployment("web", func(d *appsv1.Deployment) {
		d.Spec.Paused = true
		controllertest.Image("two")(d)
		controllertest.Scale(4)(d)
	})
	c.Eventually("scaled", func() bool {
		d := c.Deployment("web")
		return d.Status.AvailableReplicas == 4 && d.Status.ObservedGeneration == d.Generation
	})
	require.Nil(t, c.ReplicaSetOf("two"))
	require.Equal(t, "DeploymentPaused", controllertest.DeploymentCondition(c.Deployment("web"), appsv1.DeploymentProgressing).Reason)
	c.EditDeployment("web", func(d *appsv1.Deployment) { d.Spec.Paused = false })
	c.AwaitRollout("web")
	require.EqualValues(t, 4, c.ReplicaSetOf("two").Status.AvailableReplicas)
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
	c.Deploy("web", 10, func(d *appsv1.Deployment) { d.Spec.Strategy = controllertest.RollingUpdate("3", "2") })
	c.AwaitRollout("web")
	c.EditDeployment("web", controllertest.Image("broken"))
	sizes := func() (one, broken int32) {
		if rs := c.ReplicaSetOf("broken"); rs != nil {
			broken = *rs.Spec.Replicas
		}
		return *c.ReplicaSetOf("one").Spec.Replicas, broken
	}
	c.Eventually("stuck", func() bool { one, broken := sizes(); return one == 8 && broken == 5 })
	// The documentation's example: of 5 added pods, the larger gets 3 and the smaller 2.
	c.EditDeployment("web", controllertest.Scale(15))
	c.Eventually("shared out", func() bool { one, broken := sizes(); return one == 11 && broken == 7 })
	// Rollover: a third template replaces the second, which never worked.
	mu.Lock()
	works["three"] = true
	mu.Unlock()
	c.EditDeployment("web", controllertest.Image("three"))
	c.AwaitRollout("web")
	one, broken := sizes()
	require.Zero(t, one+broken)
}

func TestDeployment_RecreateWaitsForAllOldPods(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controllertest.Always)
	c.Deploy("web", 3, func(d *appsv1.Deployment) {
		d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
	})
	c.AwaitRollout("web")
	c.EditDeployment("web", controllertest.Image("two"))
	c.AwaitRollout("web")

	running := map[string]string{}
	for _, e := range c.PodChanges(c.Began) {
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

func TestDeployment_KeepsRevisionHistoryLimit(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controllertest.Always)
	c.Deploy("web", 1, func(d *appsv1.Deployment) { d.Spec.RevisionHistoryLimit = new(int32(1)) })
	c.AwaitRollout("web")
	for _, name := range []string{"two", "three", "four"} {
		c.EditDeployment("web", controllertest.Image(name))
		c.AwaitRollout("web")
	}
	c.Eventually("history cleaned up", func() bool { return len(c.ReplicaSets()) == 2 })
	require.NotNil(t, c.ReplicaSetOf("three"))
	require.NotNil(t, c.ReplicaSetOf("four"))
}

func TestDeployment_AdoptsAndReleasesReplicaSets(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controllertest.Always)
	d := c.Deploy("web", 2, nil)
	c.AwaitRollout("web")
	require.NoError(t, c.Client.AppsV1().Deployments("default").Delete(c.Context(), "web",
		metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationOrphan)}))
	c.Eventually("orphaned and gone", func() bool {
		list, err := c.Client.AppsV1().Deployments("default").List(c.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		return len(list.Items) == 0 && len(c.ReplicaSetOf("one").OwnerReferences) == 0
	})
	orphan := c.ReplicaSetOf("one")
	again := c.Deploy("web", 2, nil)
	require.NotEqual(t, d.UID, again.UID)
	c.AwaitRollout("web")
	adopted := c.ReplicaSetOf("one")
	require.Equal(t, orphan.UID, adopted.UID)
	require.True(t, metav1.IsControlledBy(adopted, again))
	require.Len(t, c.ReplicaSets(), 1)
	require.Len(t, c.Pods(), 2)
}

func TestDeployment_CountsHashCollisions(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controllertest.Always)
	c.Deploy("web", 1, nil)
	c.AwaitRollout("web")
	name := c.ReplicaSetOf("one").Name
	require.NoError(t, c.Client.AppsV1().Deployments("default").Delete(c.Context(), "web", metav1.DeleteOptions{}))
	c.Eventually("collected", func() bool { return len(c.ReplicaSets()) == 0 && len(c.Pods()) == 0 })
	squatter := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: appsv1.ReplicaSetSpec{Replicas: new(int32(0)),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "squatter"}}}}},
	}
	_, err := c.Client.AppsV1().ReplicaSets("default").Create(c.Context(), squatter, metav1.CreateOptions{})
	require.NoError(t, err)
	c.Deploy("web", 1, nil)
	d := c.AwaitRollout("web")
	require.EqualValues(t, 1, *d.Status.CollisionCount)
	require.NotEqual(t, name, c.ReplicaSetOf("one").Name)
}

// Clients of extensions/v1beta1 rolled back by this annotation.
func TestDeployment_RollsBackByAnnotation(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controllertest.Always)
	c.Deploy("web", 1, nil)
	c.AwaitRollout("web")
	for _, name := range []string{"two", "three"} {
		c.EditDeployment("web", controllertest.Image(name))
		c.AwaitRollout("web")
	}
	ask := func(revision string) {
		c.EditDeployment("web", func(d *appsv1.Deployment) { d.Annotations[appsv1.DeprecatedRollbackTo] = revision })
		c.Eventually("answered", func() bool {
			return c.Deployment("web").Annotations[appsv1.DeprecatedRollbackTo] == ""
		})
	}
	ask("1")
	c.AwaitRollout("web")
	require.Equal(t, "one", c.Deployment("web").Spec.Template.Spec.Containers[0].Image)
	c.AwaitEvent("DeploymentRollback", `Rolled back deployment "web" to revision 1`)
	ask("0") // the previous revision
	require.Equal(t, "three", c.Deployment("web").Spec.Template.Spec.Containers[0].Image)
	d := c.AwaitRollout("web")
	ask(d.Annotations["deployment.kubernetes.io/revision"])
	c.AwaitEvent("DeploymentRollbackTemplateUnchanged",
		`The rollback revision contains the same template as current deployment "web"`)
	ask("77")
	c.AwaitEvent("DeploymentRollbackRevisionNotFound", "Unable to find the revision to rollback to.")
	require.Len(t, c.ReplicaSets(), 3)
}

func TestDeployment_MissesItsProgressDeadline(t *testing.T) {
	t.Parallel()
	c := controllertest.NewClocked(t, 0, "deployment", "replicaset", "garbagecollector")
	c.CreateNode("node", nil)
	c.StartNode(func(*corev1.Pod) bool { return false })
	c.Deploy("web", 2, nil)
	progressing := func() appsv1.DeploymentCondition {
		return controllertest.DeploymentCondition(c.Deployment("web"), appsv1.DeploymentProgressing)
	}
	// Small steps of the clock let retries after conflicts happen, long before the deadline.
	c.Reaches("pods are made", func() bool { return c.Deployment("web").Status.UpdatedReplicas == 2 })
	require.Equal(t, corev1.ConditionTrue, progressing().Status)
	c.SetTime(progressing().LastUpdateTime.Add(590 * time.Second))
	awaitReconciled(c.Cluster, "web")
	require.Equal(t, corev1.ConditionTrue, progressing().Status)
	c.Passing(time.Second, "deadline", func() bool { return progressing().Reason == "ProgressDeadlineExceeded" })
	require.Equal(t, corev1.ConditionFalse, progressing().Status)
}

// awaitReconciled waits for a complete sync of the Deployment. A ReplicaSet inherits annotations at the start
// of a sync, so the second change of an annotation appears after the end of the first sync. The changes do not
// count as progress.
func awaitReconciled(c *controllertest.Cluster, name string) {
	for _, step := range []string{"first", "second"} {
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"example.com/look":%q}}}`, step)
		_, err := c.Client.AppsV1().Deployments("default").Patch(c.Context(), name, types.MergePatchType, patch,
			metav1.PatchOptions{})
		require.NoError(c, err)
		c.Eventually("the "+step+" look", func() bool {
			return c.ReplicaSetOf("one").Annotations["example.com/look"] == step
		})
	}
}
