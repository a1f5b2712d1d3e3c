package statefulset_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

// cluster adds helpers for StatefulSets to Clocked.
type cluster struct{ *controllertest.Clocked }

func (c cluster) statefulSet(name string) *appsv1.StatefulSet {
	s, err := c.Client.AppsV1().StatefulSets("default").Get(c.Context(), name, metav1.GetOptions{})
	require.NoError(c, err)
	return s
}

func (c cluster) editSet(name string, change func(*appsv1.StatefulSet)) {
	controllertest.Edit(c.Cluster, c.Client.AppsV1().StatefulSets("default"), name, change)
}

// images returns the set's pods as name=image, sorted by name; terminating pods are marked with "-".
func (c cluster) images() []string {
	found := []string{}
	for _, p := range c.Pods() {
		text := p.Name + "=" + p.Spec.Containers[0].Image
		if p.DeletionTimestamp != nil {
			text += "-"
		}
		found = append(found, text)
	}
	slices.Sort(found)
	return found
}

func (c cluster) awaitImages(want ...string) {
	c.Helper()
	var got []string
	defer func() {
		if c.Failed() {
			c.Logf("pods: %v, want %v", got, want)
		}
	}()
	c.Reaches("the pods have these images", func() bool { got = c.images(); return slices.Equal(got, want) })
}

func (c cluster) awaitSet(name string, n int32) *appsv1.StatefulSet {
	c.Helper()
	var s *appsv1.StatefulSet
	defer func() {
		if c.Failed() {
			c.Logf("set: %+v pods %v", s.Status, c.images())
		}
	}()
	c.Reaches(name+" is complete", func() bool {
		s = c.statefulSet(name)
		return s.Status.ObservedGeneration == s.Generation && s.Status.Replicas == n && s.Status.ReadyReplicas == n &&
			s.Status.AvailableReplicas == n && s.Status.CurrentRevision == s.Status.UpdateRevision &&
			s.Status.CurrentReplicas == n && s.Status.UpdatedReplicas == n
	})
	return s
}

func newSets(t testing.TB) cluster {
	return cluster{controllertest.NewClocked(t, 2, "statefulset", "garbagecollector", "persistentvolumeclaim-protection-controller")}
}

func setImage(image string) func(*appsv1.StatefulSet) {
	return func(s *appsv1.StatefulSet) { s.Spec.Template.Spec.Containers[0].Image = image }
}

func parallel(s *appsv1.StatefulSet) { s.Spec.PodManagementPolicy = appsv1.ParallelPodManagement }

func TestStatefulSet_CreatesItsPodsInOrder(t *testing.T) {
	t.Parallel()
	c := newSets(t)
	c.CreateStatefulSet("web", 3, func(s *appsv1.StatefulSet) {
		s.Spec.Template.Annotations = map[string]string{"sim.coxswain.dev/ready-after": "1m"}
		s.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: 5}
	})
	ready := func(n int32) func() bool {
		return func() bool { return c.statefulSet("web").Status.ReadyReplicas == n }
	}
	c.awaitImages("web-5=one")
	for n := int32(1); n < 3; n++ {
		require.Len(t, c.Pods(), int(n), "the next pod waits until this one is ready")
		c.Passing(time.Second, "one more is ready", ready(n))
		c.Reaches("the next pod is created", func() bool { return len(c.Pods()) == int(n)+1 })
	}
	c.awaitImages("web-5=one", "web-6=one", "web-7=one")
	c.Passing(time.Second, "all are ready", ready(3))
	s := c.awaitSet("web", 3)
	for i, p := range c.Pods() {
		require.Equal(t, p.Name, p.Labels[appsv1.StatefulSetPodNameLabel])
		require.Equal(t, fmt.Sprint(i+5), p.Labels[appsv1.PodIndexLabel])
		require.Equal(t, s.Status.CurrentRevision, p.Labels[appsv1.ControllerRevisionHashLabelKey])
		require.Equal(t, p.Name, p.Spec.Hostname)
		require.Equal(t, "peers", p.Spec.Subdomain)
		require.True(t, metav1.IsControlledBy(&p, s))
	}
	c.AwaitEvent("SuccessfulCreate", "create Pod web-5 in StatefulSet web successful")
	c.editSet("web", func(s *appsv1.StatefulSet) { s.Spec.Replicas = new(int32(1)) })
	c.awaitImages("web-5=one")
	c.AwaitEvent("SuccessfulDelete", "delete Pod web-7 in StatefulSet web successful")
}

func TestStatefulSet_ParallelDoesNotWait(t *testing.T) {
	t.Parallel()
	c := newSets(t)
	c.CreateStatefulSet("web", 4, func(s *appsv1.StatefulSet) {
		parallel(s)
		s.Spec.Template.Annotations = map[string]string{"sim.coxswain.dev/ready-after": "1h"}
	})
	c.awaitImages("web-0=one", "web-1=one", "web-2=one", "web-3=one")
	c.editSet("web", func(s *appsv1.StatefulSet) { s.Spec.Replicas = new(int32(1)) })
	c.awaitImages("web-0=one")
}

func TestStatefulSet_ReplacesAPodUnderItsName(t *testing.T) {
	t.Parallel()
	c := newSets(t)
	c.CreateStatefulSet("web", 2, nil)
	c.awaitSet("web", 2)
	old := c.Pods()[0]
	require.NoError(t, c.Client.CoreV1().Pods("default").Delete(c.Context(), old.Name, metav1.DeleteOptions{}))
	c.Reaches("a new pod has its name", func() bool {
		p, err := c.Client.CoreV1().Pods("default").Get(c.Context(), old.Name, metav1.GetOptions{})
		return err == nil && p.UID != old.UID
	})
	c.awaitSet("web", 2)
}

func TestStatefulSet_UpdatesFromTheTopAndStopsAtABrokenPod(t *testing.T) {
	t.Parallel()
	c := newSets(t)
	c.CreateStatefulSet("web", 3, nil)
	first := c.awaitSet("web", 3).Status.CurrentRevision
	c.editSet("web", func(s *appsv1.StatefulSet) {
		setImage("broken")(s)
		s.Spec.Template.Annotations = map[string]string{"sim.coxswain.dev/image-pull-error": "no such image"}
	})
	c.awaitImages("web-0=one", "web-1=one", "web-2=broken")
	c.Reaches("counts", func() bool {
		s := c.statefulSet("web").Status
		return s.CurrentReplicas == 2 && s.UpdatedReplicas == 1 && s.ReadyReplicas == 2
	})
	s := c.statefulSet("web")
	require.Equal(t, first, s.Status.CurrentRevision)
	require.NotEqual(t, first, s.Status.UpdateRevision)
	// After a rollback to the first template, its revision is used again. An ordered set waits for the broken pod,
	// which must be deleted manually, as documented.
	c.editSet("web", func(s *appsv1.StatefulSet) { setImage("one")(s); s.Spec.Template.Annotations = nil })
	c.Reaches("the target is the first revision", func() bool {
		return c.statefulSet("web").Status.UpdateRevision == first
	})
	require.NoError(t, c.Client.CoreV1().Pods("default").Delete(c.Context(), "web-2", metav1.DeleteOptions{}))
	c.awaitSet("web", 3)
	list, err := c.Client.AppsV1().ControllerRevisions("default").List(c.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	numbers := map[string]int64{}
	for _, r := range list.Items {
		numbers[r.Name] = r.Revision
	}
	require.Len(t, numbers, 2)
	require.EqualValues(t, 3, numbers[first])
}

func TestStatefulSet_Partition(t *testing.T) {
	t.Parallel()
	c := newSets(t)
	c.CreateStatefulSet("web", 3, func(s *appsv1.StatefulSet) {
		s.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{Partition: new(int32(2))}
	})
	c.awaitSet("web", 3)
	c.editSet("web", setImage("two"))
	c.awaitImages("web-0=one", "web-1=one", "web-2=two")
	// A pod below the partition is recreated with the old revision, one above with the new revision.
	require.NoError(t, c.Client.CoreV1().Pods("default").Delete(c.Context(), "web-0", metav1.DeleteOptions{}))
	c.editSet("web", func(s *appsv1.StatefulSet) { s.Spec.Replicas = new(int32(4)) })
	c.awaitImages("web-0=one", "web-1=one", "web-2=two", "web-3=two")
	c.editSet("web", func(s *appsv1.StatefulSet) { s.Spec.UpdateStrategy.RollingUpdate.Partition = new(int32(0)) })
	c.awaitImages("web-0=two", "web-1=two", "web-2=two", "web-3=two")
	c.awaitSet("web", 4)
}

func TestStatefulSet_MaxUnavailable(t *testing.T) {
	t.Parallel()
	c := newSets(t)
	c.CreateStatefulSet("web", 5, func(s *appsv1.StatefulSet) {
		parallel(s)
		s.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{MaxUnavailable: new(
			intstr.FromInt32(2))}
	})
	c.awaitSet("web", 5)
	c.editSet("web", func(s *appsv1.StatefulSet) {
		setImage("two")(s)
		s.Spec.Template.Annotations = map[string]string{"sim.coxswain.dev/ready-after": "1h"}
	})
	c.awaitImages("web-0=one", "web-1=one", "web-2=one", "web-3=two", "web-4=two")
	c.Reaches("three are ready", func() bool {
		s := c.statefulSet("web").Status
		return s.ReadyReplicas == 3 && s.UpdatedReplicas == 2
	})
	for metric, n := range map[string]float64{"max_unavailable": 2, "unavailable_replicas": 2} {
		c.AwaitMetric(n, "statefulset_controller_statefulset_"+metric, "statefulset_namespace", "default",
			"statefulset_name", "web", "pod_management_policy", "Parallel")
	}
	c.Passing(10*time.Minute, "the update continues", func() bool {
		return c.statefulSet("web").Status.UpdatedReplicas == 5
	})
}

func TestStatefulSet_OnDelete(t *testing.T) {
	t.Parallel()
	c := newSets(t)
	c.CreateStatefulSet("web", 2, func(s *appsv1.StatefulSet) {
		s.Spec.UpdateStrategy.Type = appsv1.OnDeleteStatefulSetStrategyType
	})
	c.Reaches("two pods are ready", func() bool { return c.statefulSet("web").Status.ReadyReplicas == 2 })
	c.editSet("web", setImage("two"))
	c.Reaches("the update is observed", func() bool { s := c.statefulSet("web"); return s.Status.ObservedGeneration == s.Generation })
	require.NoError(t, c.Client.CoreV1().Pods("default").Delete(c.Context(), "web-0", metav1.DeleteOptions{}))
	c.awaitImages("web-0=two", "web-1=one")
}

func TestStatefulSet_MinReadySeconds(t *testing.T) {
	t.Parallel()
	c := newSets(t)
	c.CreateStatefulSet("web", 2, func(s *appsv1.StatefulSet) { s.Spec.MinReadySeconds = 600 })
	c.Reaches("the first is ready", func() bool { return c.statefulSet("web").Status.ReadyReplicas == 1 })
	require.Len(t, c.Pods(), 1)
	require.Zero(t, c.statefulSet("web").Status.AvailableReplicas)
	c.Passing(time.Minute, "both available", func() bool { return c.statefulSet("web").Status.AvailableReplicas == 2 })
}

func TestStatefulSet_VolumeClaims(t *testing.T) {
	t.Parallel()
	c := newSets(t)
	c.CreateStatefulSet("web", 2, func(s *appsv1.StatefulSet) {
		s.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{
			ObjectMeta: metav1.ObjectMeta{Name: "data"},
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}},
		}}
		parallel(s)
		s.Spec.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
			WhenDeleted: appsv1.DeletePersistentVolumeClaimRetentionPolicyType,
			WhenScaled:  appsv1.RetainPersistentVolumeClaimRetentionPolicyType}
	})
	claims := func() []string {
		list, err := c.Client.CoreV1().PersistentVolumeClaims("default").List(c.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		names := []string{}
		for _, claim := range list.Items {
			require.Equal(t, "web", claim.Labels["app"])
			names = append(names, claim.Name)
		}
		return names
	}
	c.Reaches("the claims exist", func() bool { return slices.Equal(claims(), []string{"data-web-0", "data-web-1"}) })
	c.Reaches("pods", func() bool { return len(c.Pods()) == 2 })
	for _, p := range c.Pods() {
		i := slices.IndexFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == "data" })
		require.Equal(t, "data-"+p.Name, p.Spec.Volumes[i].PersistentVolumeClaim.ClaimName)
	}
	c.editSet("web", func(s *appsv1.StatefulSet) { s.Spec.Replicas = new(int32(1)) })
	c.awaitImages("web-0=one")
	require.Len(t, claims(), 2, "claims stay when the set is scaled down")
	c.editSet("web", func(s *appsv1.StatefulSet) {
		s.Spec.PersistentVolumeClaimRetentionPolicy.WhenScaled = appsv1.DeletePersistentVolumeClaimRetentionPolicyType
		s.Spec.Replicas = new(int32(2))
	})
	c.awaitImages("web-0=one", "web-1=one")
	c.editSet("web", func(s *appsv1.StatefulSet) { s.Spec.Replicas = new(int32(1)) })
	c.Reaches("the claim is deleted with its pod", func() bool { return slices.Equal(claims(), []string{"data-web-0"}) })
	require.NoError(t, c.Client.AppsV1().StatefulSets("default").Delete(c.Context(), "web",
		metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}))
	c.Reaches("the set's deletion deletes all", func() bool { return len(claims()) == 0 && len(c.Pods()) == 0 })
}

func TestStatefulSet_LimitsItsHistory(t *testing.T) {
	t.Parallel()
	c := newSets(t)
	c.CreateStatefulSet("web", 1, func(s *appsv1.StatefulSet) { s.Spec.RevisionHistoryLimit = new(int32(1)) })
	c.awaitSet("web", 1)
	for _, image := range []string{"two", "three", "four"} {
		c.editSet("web", setImage(image))
		c.awaitImages("web-0=" + image)
		c.awaitSet("web", 1)
	}
	c.Reaches("the current revision and one more", func() bool {
		list, err := c.Client.AppsV1().ControllerRevisions("default").List(c.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		return len(list.Items) == 2
	})
}
