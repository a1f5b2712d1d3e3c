package podgc_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
	"github.com/coxswain-dev/coxswain/internal/series/seriestest"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

func TestPodGC_DeletesOrphansAfterTheQuarantine(t *testing.T) {
	t.Parallel()
	c := controllertest.NewClocked(t, 0, "podgc")
	create := func(name, node string) {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{"example.com/look"}},
			Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "one"}}},
		}
		_, err := c.Client.CoreV1().Pods("default").Create(c.Context(), pod, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	_, err := c.Client.CoreV1().Nodes().Create(c.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here"}},
		metav1.CreateOptions{})
	require.NoError(t, err)
	create("stays", "here")
	create("goes", "gone")
	from := c.Now()
	var pod *corev1.Pod
	c.Passing(5*time.Second, "the orphan is deleted", func() bool {
		pod, err = c.Client.CoreV1().Pods("default").Get(c.Context(), "goes", metav1.GetOptions{})
		require.NoError(t, err)
		return pod.DeletionTimestamp != nil
	})
	require.GreaterOrEqual(t, c.Since(from), 40*time.Second, "the Node may come back during the quarantine")
	require.Equal(t, corev1.PodFailed, pod.Status.Phase)
	condition := pod.Status.Conditions[len(pod.Status.Conditions)-1]
	require.Equal(t, corev1.DisruptionTarget, condition.Type)
	require.Equal(t, "DeletionByPodGC", condition.Reason)
	require.NotZero(t, seriestest.Value(t, c.Metrics, "pod_gc_collector_force_delete_pods_total",
		"namespace", "default", "reason", "orphaned"))
	pod, err = c.Client.CoreV1().Pods("default").Get(c.Context(), "stays", metav1.GetOptions{})
	require.NoError(t, err)
	require.Nil(t, pod.DeletionTimestamp)
	for _, name := range []string{"stays", "goes"} {
		_, err := c.Client.CoreV1().Pods("default").Patch(c.Context(), name, "application/merge-patch+json",
			[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	c.Eventually("the orphan is removed", func() bool {
		_, err := c.Client.CoreV1().Pods("default").Get(c.Context(), "goes", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

func TestPodGC_DeletesTerminatingPodsOfNodesOutOfService(t *testing.T) {
	t.Parallel()
	c := controllertest.NewClockedWith(t, controllers.Settings{TerminatedPodThreshold: new(2)}, "podgc")
	c.CreateReadyNode("off", corev1.Taint{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute})
	c.CreateReadyNode("on")
	pods := c.Client.CoreV1().Pods("default")
	for name, node := range map[string]string{"stuck": "off", "stays": "off", "ends": "on"} {
		c.CreatePodOn(node, name)
		if name != "stays" {
			require.NoError(t, pods.Delete(c.Context(), name, metav1.DeleteOptions{}))
		}
	}
	seen := c.Now()
	c.Passing(5*time.Second, "a round has run", func() bool { return c.Since(seen) > time.Minute })
	require.Equal(t, corev1.PodRunning, c.Pod("stuck").Status.Phase, "its Node is ready: its agent ends it")
	n, err := c.Client.CoreV1().Nodes().Get(c.Context(), "off", metav1.GetOptions{})
	require.NoError(t, err)
	n.Status.Conditions[0].Status = corev1.ConditionUnknown
	_, err = c.Client.CoreV1().Nodes().UpdateStatus(c.Context(), n, metav1.UpdateOptions{})
	require.NoError(t, err)
	c.Passing(5*time.Second, "it is failed", func() bool { return c.Pod("stuck").Status.Phase == corev1.PodFailed })
	require.Equal(t, corev1.PodRunning, c.Pod("stays").Status.Phase)
	require.Equal(t, corev1.PodRunning, c.Pod("ends").Status.Phase)

	// Of the terminated pods, the evicted one is deleted first.
	for _, name := range []string{"first", "evicted", "last"} {
		c.CreatePodOn("on", name)
		pod := c.Pod(name)
		pod.Status.Phase = corev1.PodSucceeded
		if name == "evicted" {
			pod.Status.Phase, pod.Status.Reason = corev1.PodFailed, "Evicted"
		}
		_, err := pods.UpdateStatus(c.Context(), pod, metav1.UpdateOptions{})
		require.NoError(t, err)
	}
	c.Passing(5*time.Second, "the pod above the threshold is deleted", c.Goes("evicted"))
	require.False(t, c.Goes("first")())
	require.False(t, c.Goes("last")())
	for _, reason := range []string{"out-of-service", "terminated"} {
		require.NotZero(t, seriestest.Value(t, c.Metrics, "pod_gc_collector_force_delete_pods_total",
			"namespace", "default", "reason", reason), reason)
	}
	require.Zero(t, seriestest.Value(t, c.Metrics, "pod_gc_collector_force_delete_pod_errors_total"))
	c.Faults.RefuseWhile(func() bool { return true }, http.MethodDelete, "pods")
	c.CreatePodOn("off", "refused")
	c.EndPod("refused", corev1.PodSucceeded, 0)
	c.Passing(5*time.Second, "a refusal is counted", func() bool {
		return seriestest.Value(t, c.Metrics, "pod_gc_collector_force_delete_pod_errors_total",
			"namespace", "default", "reason", "terminated") > 0
	})
}
