package tainteviction_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

func TestTaintEviction_DependsOnTolerations(t *testing.T) {
	t.Parallel()
	c := controllertest.NewClocked(t, 0, "taint-eviction")
	c.CreateReadyNode("n")
	tolerate := func(seconds *int64) corev1.Toleration {
		return corev1.Toleration{Key: "example.com/out", Operator: corev1.TolerationOpExists,
			Effect: corev1.TaintEffectNoExecute, TolerationSeconds: seconds}
	}
	c.CreatePodOn("n", "intolerant")
	c.CreatePodOn("n", "patient", tolerate(new(int64(60))))
	c.CreatePodOn("n", "spared", tolerate(new(int64(100000))))
	c.CreatePodOn("n", "tolerant", tolerate(nil))
	begin := c.Now()
	_, err := c.Client.CoreV1().Nodes().Patch(c.Context(), "n", types.MergePatchType,
		[]byte(`{"spec":{"taints":[{"key":"example.com/out","effect":"NoExecute"}]}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	c.Reaches("the intolerant pod is evicted", c.Goes("intolerant"))
	c.Passing(time.Second, "the patient pod is evicted", c.Goes("patient"))
	require.GreaterOrEqual(t, c.Since(begin), time.Minute)
	_, err = c.Client.CoreV1().Nodes().Patch(c.Context(), "n", types.MergePatchType, []byte(`{"spec":{"taints":null}}`),
		metav1.PatchOptions{})
	require.NoError(t, err)
	c.AwaitEvent("TaintManagerEviction", "Cancelling deletion of Pod default/spared")
	require.False(t, c.Goes("spared")())
	require.False(t, c.Goes("tolerant")())
	c.AwaitMetric(2, "taint_eviction_controller_pod_deletions_total")
	c.AwaitMetric(2, "taint_eviction_controller_pod_deletion_duration_seconds")
}
