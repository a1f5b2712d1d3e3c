package daemonset_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

// cluster adds helpers for DaemonSets to a controllertest.Clocked.
type cluster struct{ *controllertest.Clocked }

func (c cluster) daemon(name string, edit func(*appsv1.DaemonSet)) *appsv1.DaemonSet {
	labels := map[string]string{"app": name}
	d := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "one"}}}},
		},
	}
	if edit != nil {
		edit(d)
	}
	d, err := c.Client.AppsV1().DaemonSets("default").Create(c.Context(), d, metav1.CreateOptions{})
	require.NoError(c, err)
	return d
}

func (c cluster) daemonSet(name string) *appsv1.DaemonSet {
	d, err := c.Client.AppsV1().DaemonSets("default").Get(c.Context(), name, metav1.GetOptions{})
	require.NoError(c, err)
	return d
}

func (c cluster) editDaemon(name string, change func(*appsv1.DaemonSet)) {
	controllertest.Edit(c.Cluster, c.Client.AppsV1().DaemonSets("default"), name, change)
}

func (c cluster) editNode(name string, change func(*corev1.Node)) {
	controllertest.Edit(c.Cluster, c.Client.CoreV1().Nodes(), name, change)
}

// awaitDaemon waits as "kubectl rollout status" does.
func (c cluster) awaitDaemon(name string, n int32) *appsv1.DaemonSet {
	c.Helper()
	var d *appsv1.DaemonSet
	defer func() {
		if c.Failed() {
			c.Logf("set: %+v pods %v", d.Status, c.places())
		}
	}()
	c.Reaches(name+" is complete", func() bool {
		d = c.daemonSet(name)
		s := d.Status
		return s.ObservedGeneration == d.Generation && s.DesiredNumberScheduled == n && s.CurrentNumberScheduled == n &&
			s.UpdatedNumberScheduled == n && s.NumberAvailable == n && s.NumberReady == n && s.NumberUnavailable == 0
	})
	return d
}

// places returns the Nodes that have a pod, each with the pod's image.
func (c cluster) places() []string {
	found := []string{}
	for _, p := range c.Pods() {
		if p.DeletionTimestamp == nil {
			found = append(found, p.Spec.NodeName+"="+p.Spec.Containers[0].Image)
		}
	}
	slices.Sort(found)
	return found
}

func newDaemons(t testing.TB) cluster {
	return cluster{controllertest.NewClocked(t, 3, "daemonset", "garbagecollector")}
}

func TestDaemonSet_CreatesAPodOnEachNode(t *testing.T) {
	t.Parallel()
	c := newDaemons(t)
	c.daemon("agent", nil)
	d := c.awaitDaemon("agent", 3)
	require.Equal(t, []string{"node-0=one", "node-1=one", "node-2=one"}, c.places())
	pod := c.Pods()[0]
	require.True(t, metav1.IsControlledBy(&pod, d))
	require.NotEmpty(t, pod.Labels["controller-revision-hash"])
	require.NotEmpty(t, pod.Labels["pod-template-generation"])
	tolerated := []string{}
	for _, toleration := range pod.Spec.Tolerations {
		tolerated = append(tolerated, toleration.Key+":"+string(toleration.Effect))
	}
	require.Subset(t, tolerated, []string{
		"node.kubernetes.io/not-ready:NoExecute", "node.kubernetes.io/unreachable:NoExecute",
		"node.kubernetes.io/unschedulable:NoSchedule", "node.kubernetes.io/disk-pressure:NoSchedule",
	})
	c.AwaitEvent("SuccessfulCreate", "Created pod: agent-")
	require.NoError(t, c.Client.CoreV1().Pods("default").Delete(c.Context(), pod.Name, metav1.DeleteOptions{}))
	c.Reaches("made anew", func() bool {
		_, err := c.Client.CoreV1().Pods("default").Get(c.Context(), pod.Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err) && len(c.places()) == 3
	})
	c.awaitDaemon("agent", 3)
	require.Len(t, c.Pods(), 3)
}

func TestDaemonSet_FollowsLabelsAndTaintsOfNodes(t *testing.T) {
	t.Parallel()
	c := newDaemons(t)
	c.editNode("node-0", func(n *corev1.Node) { n.Labels["disk"] = "ssd" })
	c.daemon("agent", func(d *appsv1.DaemonSet) {
		d.Spec.Template.Spec.NodeSelector = map[string]string{"disk": "ssd"}
	})
	c.awaitDaemon("agent", 1)
	c.editNode("node-1", func(n *corev1.Node) { n.Labels["disk"] = "ssd" })
	c.awaitDaemon("agent", 2)
	require.Equal(t, []string{"node-0=one", "node-1=one"}, c.places())
	// NoSchedule keeps existing pods and prevents new ones; NoExecute evicts pods.
	c.editNode("node-0", func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "full", Effect: corev1.TaintEffectNoSchedule})
	})
	c.Reaches("misscheduled", func() bool {
		s := c.daemonSet("agent").Status
		return s.NumberMisscheduled == 1 && s.DesiredNumberScheduled == 1
	})
	require.Len(t, c.places(), 2)
	c.editNode("node-0", func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "leave", Effect: corev1.TaintEffectNoExecute}}
	})
	c.Reaches("it has left", func() bool { return slices.Equal(c.places(), []string{"node-1=one"}) })
	c.editDaemon("agent", func(d *appsv1.DaemonSet) {
		d.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Key: "leave", Operator: corev1.TolerationOpExists}}
	})
	c.awaitDaemon("agent", 2)
	c.editNode("node-1", func(n *corev1.Node) { delete(n.Labels, "disk") })
	c.Reaches("it has left", func() bool { return slices.Equal(c.places(), []string{"node-0=one"}) })
}

func daemonImage(image string) func(*appsv1.DaemonSet) {
	return func(d *appsv1.DaemonSet) {
		d.Spec.Template.Spec.Containers[0].Image = image
		d.Spec.Template.Annotations = map[string]string{"sim.coxswain.dev/ready-after": "1m"}
	}
}

func TestDaemonSet_UpdatesOneNodeAfterTheOther(t *testing.T) {
	t.Parallel()
	c := newDaemons(t)
	c.daemon("agent", nil)
	c.awaitDaemon("agent", 3)
	c.editDaemon("agent", daemonImage("two"))
	count := func(image string) (n int) {
		for _, p := range c.places() {
			if p[len(p)-3:] == image {
				n++
			}
		}
		return n
	}
	c.Reaches("the first is replaced", func() bool {
		return count("two") == 1 && c.daemonSet("agent").Status.UpdatedNumberScheduled == 1
	})
	require.Equal(t, 2, count("one"), "the next waits")
	least := 3
	c.Passing(time.Second, "all are replaced", func() bool {
		ready := 0
		for _, p := range c.Pods() {
			if controllertest.PodReady(&p) {
				ready++
			}
		}
		least = min(least, ready)
		return count("two") == 3
	})
	require.GreaterOrEqual(t, least, 2)
	list, err := c.Client.AppsV1().ControllerRevisions("default").List(c.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, list.Items, 2)
}

func TestDaemonSet_SurgesBeforeDeletingOldPods(t *testing.T) {
	t.Parallel()
	c := newDaemons(t)
	c.daemon("agent", func(d *appsv1.DaemonSet) {
		d.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{
			MaxSurge: new(intstr.FromInt32(1)), MaxUnavailable: new(intstr.FromInt32(0))}
	})
	c.awaitDaemon("agent", 3)
	c.editDaemon("agent", daemonImage("two"))
	c.Reaches("one more", func() bool {
		d := c.daemonSet("agent")
		return len(c.places()) == 4 && d.Status.ObservedGeneration == d.Generation
	})
	s := c.daemonSet("agent").Status
	require.EqualValues(t, 3, s.NumberAvailable)
	require.Zero(t, s.UpdatedNumberScheduled, "the old pod speaks for its Node as long as it is there")
	c.Passing(time.Second, "all are replaced", func() bool {
		return slices.Equal(c.places(), []string{"node-0=two", "node-1=two", "node-2=two"})
	})
}

func TestDaemonSet_OnDelete(t *testing.T) {
	t.Parallel()
	c := newDaemons(t)
	c.daemon("agent", func(d *appsv1.DaemonSet) {
		d.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}
	})
	c.awaitDaemon("agent", 3)
	c.editDaemon("agent", daemonImage("two"))
	c.Reaches("seen", func() bool {
		d := c.daemonSet("agent")
		return d.Status.ObservedGeneration == d.Generation && d.Status.UpdatedNumberScheduled == 0
	})
	for _, p := range c.Pods() {
		if p.Spec.NodeName == "node-1" {
			require.NoError(t, c.Client.CoreV1().Pods("default").Delete(c.Context(), p.Name, metav1.DeleteOptions{}))
		}
	}
	c.Reaches("that one", func() bool {
		return slices.Equal(c.places(), []string{"node-0=one", "node-1=two", "node-2=one"})
	})
}

func TestDaemonSet_ReplacesFailedPods(t *testing.T) {
	t.Parallel()
	c := newDaemons(t)
	c.daemon("agent", nil)
	c.awaitDaemon("agent", 3)
	pod := c.Pods()[0]
	c.EndPod(pod.Name, corev1.PodFailed, 1)
	c.Passing(100*time.Millisecond, "replaced", func() bool {
		_, err := c.Client.CoreV1().Pods("default").Get(c.Context(), pod.Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	c.AwaitEvent("FailedDaemonPod", "will try to kill it")
	c.Passing(100*time.Millisecond, "three again", func() bool {
		return len(c.places()) == 3 && c.daemonSet("agent").Status.NumberReady == 3
	})
}
