package node

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/coxswain-dev/coxswain/node/simulated"
)

func TestStaticPods_FollowTheFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(image string) {
		t.Helper()
		text := "apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: default}\nspec: {containers: [{name: " +
			"c, image: " + image + "}]}\n"
		require.NoError(t, os.WriteFile(filepath.Join(dir, "web.yaml"), []byte(text), 0o600))
	}
	write("one")
	c := startCluster(t, Options{Count: 1, StaticPodPath: dir})
	image := func() string {
		if pod := c.pod("web-node-0"); len(pod.Spec.Containers) > 0 {
			return pod.Spec.Containers[0].Image
		}
		return ""
	}
	c.later(time.Second, "it runs", func() bool {
		return image() == "one" && c.pod("web-node-0").Status.Phase == corev1.PodRunning
	})
	mirror := c.pod("web-node-0")
	require.Equal(t, "file", mirror.Annotations[annotationSource])
	require.Equal(t, mirror.Annotations[annotationHash], mirror.Annotations[corev1.MirrorPodAnnotationKey])
	require.Equal(t, "Node", mirror.OwnerReferences[0].Kind)
	write("two")
	c.later(time.Second, "it is made anew", func() bool { return image() == "two" })
	require.NoError(t, os.WriteFile(filepath.Join(dir, "broken.yaml"), []byte("kind: Pod\nnonsense"), 0o600))
	_, err := readStaticPods(dir)
	require.ErrorContains(t, err, "broken.yaml")
	require.NoError(t, os.Remove(filepath.Join(dir, "broken.yaml")))
	require.NoError(t, os.Remove(filepath.Join(dir, "web.yaml")))
	c.later(time.Second, "it is gone", func() bool { return image() == "" })
}

// manifest writes the manifest of a static pod named web.
func manifest(t *testing.T, dir string, annotations string) {
	t.Helper()
	text := "apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: default, annotations: {" +
		annotations + "}}\n" +
		"spec: {containers: [{name: c, image: one}]}\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "web.yaml"), []byte(text), 0o600))
}

// forged returns a pod that claims to be static in every possible way.
func forged(name string, annotations ...string) *corev1.Pod {
	return boundPod(name, "node-0", append(annotations,
		corev1.MirrorPodAnnotationKey, "a-hash", annotationHash, "a-hash", annotationSource, "file")...)
}

// deletions counts the requests to delete a pod.
func (c *cluster) deletions(name string) (n int) {
	for _, action := range c.Actions() {
		if d, ok := action.(clienttesting.DeleteAction); ok && action.Matches("delete", "pods") && d.GetName() == name {
			n++
		}
	}
	return n
}

func TestStaticPods_ForgedOnesAreDeletedWithoutHarm(t *testing.T) {
	t.Parallel()
	c := startCluster(t,
		Options{Capacity: corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse("100Gi")}})
	c.create(boundPod("neighbour", "node-0", simulated.AnnotationDisk, "1Gi"))
	c.later(time.Second, "the neighbour runs", func() bool { return ready(c.pod("neighbour")) })
	running := forged("forged", simulated.AnnotationDisk, "999Ei")
	running.Status.Phase, running.Status.StartTime = corev1.PodRunning, new(metav1.NewTime(c.clock.Now()))
	running.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "c", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(
			c.clock.Now())}},
	}}
	terminating := forged("held", simulated.AnnotationDisk, "999Ei")
	terminating.Finalizers = []string{"example.com/hold"}
	terminating.DeletionTimestamp = new(metav1.NewTime(c.clock.Now()))
	terminating.DeletionGracePeriodSeconds = new(int64)
	c.create(running)
	c.create(terminating)
	c.eventually("it is deleted", func() bool { return c.pod("forged").Name == "" })
	young := forged("young")
	young.CreationTimestamp = metav1.NewTime(c.clock.Now())
	c.create(young)
	c.create(boundPod("sentinel", "node-0"))
	c.eventually("the sentinel runs", func() bool { return ready(c.pod("sentinel")) })
	require.Zero(t, c.deletions("young"), "what makes such pods is not driven")
	c.later(cleanupPeriod, "it is deleted", func() bool { return c.pod("young").Name == "" })
	for i := range 12 {
		c.clock.Step(10 * time.Second) // the node checks its free resources
		sentinel := fmt.Sprintf("sentinel-%d", i)
		c.create(boundPod(sentinel, "node-0"))
		c.later(time.Second, "the node goes on", func() bool { return ready(c.pod(sentinel)) })
	}
	require.True(t, ready(c.pod("neighbour")), "nobody is evicted for it")
	require.NotEqual(t, corev1.ConditionTrue, nodeCondition(c.node(), corev1.NodeDiskPressure).Status)
	require.Empty(t, c.pod("held").Status.ContainerStatuses, "one that a finalizer holds does not run")
	require.Zero(t, c.deletions("held"), "it is being deleted")
}

func TestStaticPods_AreRecognizedByTheRecordOnly(t *testing.T) {
	t.Parallel()
	dir, data := t.TempDir(), t.TempDir()
	manifest(t, dir, "")
	o := Options{Count: 1, StaticPodPath: dir, DataDir: data}
	c := startCluster(t, o)
	c.later(time.Second, "it runs", func() bool { return ready(c.pod("web-node-0")) })
	first := c.pod("web-node-0")

	c.stop()
	c.ClearActions()
	c.start(o)
	c.create(boundPod("sentinel", "node-0"))
	c.later(time.Second, "the next agent goes on", func() bool { return ready(c.pod("sentinel")) })
	c.clock.Step(staticPodsEvery)
	require.Equal(t, first.UID, c.pod("web-node-0").UID, "a static pod outlives its agent")
	require.Zero(t, c.deletions("web-node-0"))

	forgery := first.DeepCopy()
	forgery.UID, forgery.ResourceVersion, forgery.Status = "somebody else's", "", corev1.PodStatus{}
	forgery.Spec.Containers[0].Image = "two"
	c.eventually("a namesake takes the place of the agent's own before that is back", func() bool {
		pods := c.CoreV1().Pods("default")
		if err := pods.Delete(t.Context(), "web-node-0", metav1.DeleteOptions{}); err != nil {
			return false
		}
		_, err := pods.Create(t.Context(), forgery, metav1.CreateOptions{})
		return err == nil
	})
	c.later(time.Second, "the agent's own is back", func() bool {
		pod := c.pod("web-node-0")
		return ready(pod) && pod.UID != forgery.UID && pod.Spec.Containers[0].Image == "one"
	})

	c.stop()
	o.StaticPodPath = ""
	c.start(o)
	c.later(time.Second, "an agent without the folder has no static pods", func() bool {
		return c.pod("web-node-0").Name == ""
	})
}

func TestStaticPods_WithChangedSimulationAreRecreated(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	manifest(t, dir, simulated.AnnotationDisk+": 1Gi")
	c := startCluster(t, Options{Count: 1, StaticPodPath: dir})
	c.create(boundPod("neighbour", "node-0", simulated.AnnotationDisk, "10Gi"))
	for _, name := range []string{"neighbour", "web-node-0"} {
		c.later(time.Second, name+" runs", func() bool { return ready(c.pod(name)) })
	}
	first := c.pod("web-node-0").UID
	_, err := c.CoreV1().Pods("default").Patch(t.Context(), "web-node-0", types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"`+simulated.AnnotationDisk+`":"999Ei"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	c.later(brief, "it is made anew", func() bool { pod := c.pod("web-node-0"); return pod.UID != first && ready(pod) })
	require.Equal(t, "1Gi", c.pod("web-node-0").Annotations[simulated.AnnotationDisk])
	require.True(t, ready(c.pod("neighbour")), "the neighbour stays")
}

func TestEviction_PressureOfOnePodEndsWithIt(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Options{})
	c.create(boundPod("neighbour", "node-0", simulated.AnnotationDisk, "10Gi"))
	// A node under pressure accepts no pods: the neighbour is there before the greedy one.
	c.later(time.Second, "the neighbour runs", func() bool { return ready(c.pod("neighbour")) })
	greedy := boundPod("greedy", "node-0", simulated.AnnotationDisk, "999Ei")
	greedy.Spec.Containers = append(greedy.Spec.Containers, corev1.Container{Name: "d", Image: "nginx:1"})
	c.create(greedy)
	// The greedy pod must run to use the disk; the test may or may not observe that before the eviction.
	c.later(brief, "it goes", func() bool { return c.pod("greedy").Status.Reason == "Evicted" })
	c.later(brief, "the Node says so", func() bool {
		return nodeCondition(c.node(), corev1.NodeDiskPressure).Status == corev1.ConditionTrue
	})
	c.later(30*time.Second, "it passes", func() bool {
		return nodeCondition(c.node(), corev1.NodeDiskPressure).Status == corev1.ConditionFalse
	})
	require.True(t, ready(c.pod("neighbour")), "the neighbour stays")
}
