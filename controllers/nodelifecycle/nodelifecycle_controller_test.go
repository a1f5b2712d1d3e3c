package nodelifecycle_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
	"github.com/coxswain-dev/coxswain/internal/series/seriestest"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

func TestNodeLifecycle_EvictsPodsFromANodeWithoutHeartbeats(t *testing.T) {
	t.Parallel()
	c := controllertest.NewClocked(t, 2, "nodelifecycle", "taint-eviction")
	begin := c.Now()
	c.CreateReadyNode("dead")
	c.CreatePodOn("dead", "p")
	c.Passing(time.Second, "the node is Unknown", func() bool {
		node, err := c.Client.CoreV1().Nodes().Get(c.Context(), "dead", metav1.GetOptions{})
		require.NoError(t, err)
		return controllertest.NodeCondition(node, corev1.NodeReady).Status == corev1.ConditionUnknown
	})
	require.GreaterOrEqual(t, c.Since(begin), 50*time.Second)
	c.Passing(time.Second, "its pod is not ready", func() bool {
		return controllertest.PodCondition(c.Pod("p"), corev1.PodReady).Status == corev1.ConditionFalse
	})
	// The toleration that DefaultTolerationSeconds adds delays the eviction by five minutes.
	c.Passing(time.Second, "the pod is evicted", c.Goes("p"))
	require.GreaterOrEqual(t, c.Since(begin), 350*time.Second)
	require.Equal(t, "DeletionByTaintManager", controllertest.PodCondition(c.Pod("p"), corev1.DisruptionTarget).Reason)
	c.AwaitEvent("TaintManagerEviction", "Marking for deletion Pod default/p")
	c.AwaitMetric(1, "node_collector_evictions_total", "zone", "")
	c.AwaitMetric(3, "node_collector_zone_size", "zone", "")
	c.AwaitMetric(1, "node_collector_unhealthy_nodes_in_zone", "zone", "")
	require.InDelta(t, 66.7, seriestest.Value(t, c.Metrics, "node_collector_zone_health", "zone", ""), 0.1)
	rounds := seriestest.Value(t, c.Metrics, "node_collector_update_all_nodes_health_duration_seconds")
	require.NotZero(t, rounds)
	require.Greater(t, seriestest.Value(t, c.Metrics, "node_collector_update_node_health_duration_seconds"), rounds)

	// The series of a zone end with its last Node.
	c.CreateNode("far", func(n *corev1.Node) {
		n.Labels = map[string]string{corev1.LabelTopologyRegion: "r", corev1.LabelTopologyZone: "z"}
	})
	c.Passing(time.Second, "the zone is counted", func() bool {
		return seriestest.Value(t, c.Metrics, "node_collector_zone_size", "zone", "r:\x00:z") == 1
	})
	require.NoError(t, c.Client.CoreV1().Nodes().Delete(c.Context(), "far", metav1.DeleteOptions{}))
	c.Passing(time.Second, "the zone is forgotten", func() bool {
		return seriestest.Value(t, c.Metrics, "node_collector_zone_size") == 3
	})
}

func TestNodeLifecycle_TaintsByCondition(t *testing.T) {
	t.Parallel()
	c := controllertest.NewClocked(t, 0, "nodelifecycle")
	theirs := corev1.Taint{Key: "example.com/theirs", Effect: corev1.TaintEffectNoSchedule}
	c.CreateReadyNode("n", theirs)
	taints := func(want ...string) {
		t.Helper()
		c.Reaches("the taints", func() bool {
			node, err := c.Client.CoreV1().Nodes().Get(c.Context(), "n", metav1.GetOptions{})
			require.NoError(t, err)
			have := map[string]bool{}
			for _, taint := range node.Spec.Taints {
				have[taint.Key] = taint.Effect == corev1.TaintEffectNoSchedule
			}
			for _, key := range want {
				if !have[key] {
					return false
				}
			}
			return len(have) == len(want)
		})
	}
	patch := func(body string, subresources ...string) {
		_, err := c.Client.CoreV1().Nodes().Patch(c.Context(), "n", types.StrategicMergePatchType, []byte(body),
			metav1.PatchOptions{}, subresources...)
		require.NoError(t, err)
	}
	taints(theirs.Key)
	patch(`{"spec":{"unschedulable":true}}`)
	patch(`{"status":{"conditions":[{"type":"MemoryPressure","status":"True"},{"type":"PIDPressure","status":"True"}]}}`, "status")
	taints(theirs.Key, corev1.TaintNodeUnschedulable, corev1.TaintNodeMemoryPressure, corev1.TaintNodePIDPressure)
	patch(`{"spec":{"unschedulable":false}}`)
	patch(`{"status":{"conditions":[{"type":"MemoryPressure","status":"False"}]}}`, "status")
	taints(theirs.Key, corev1.TaintNodePIDPressure)
}

// renewLeases sends the heartbeats of the bare Nodes that are alive: it renews their Leases.
func renewLeases(c *controllertest.Clocked, nodes map[string]bool) {
	leases := c.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	for name, alive := range nodes {
		if !alive {
			continue
		}
		lease, err := leases.Get(c.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			lease, err = leases.Create(c.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}},
				metav1.CreateOptions{})
		}
		require.NoError(c, err)
		lease.Spec.RenewTime = new(metav1.NewMicroTime(c.Now()))
		_, err = leases.Update(c.Context(), lease, metav1.UpdateOptions{})
		require.NoError(c, err)
	}
}

// TestNodeLifecycle_KeepsThePeriodsOfItsFlags measures the periods that the flags set when Nodes die, and when one
// comes back in time.
func TestNodeLifecycle_KeepsThePeriodsOfItsFlags(t *testing.T) {
	t.Parallel()
	c := controllertest.NewClocked(t, 0, "nodelifecycle", "taint-eviction")
	c.Settings.Node.MonitorPeriod, c.Settings.Node.MonitorGracePeriod, c.Settings.Node.EvictionRate = 2*time.Second,
		30*time.Second, 1
	c.Restart()
	nodes := map[string]bool{"n0": true, "n1": true, "n2": true, "n3": true}
	for name := range nodes {
		c.CreateReadyNode(name)
	}
	minute := corev1.Toleration{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists,
		Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(60))}
	c.CreatePodOn("n0", "on-n0", minute)
	c.CreatePodOn("n1", "on-n1", minute)
	get := func(name string) *corev1.Node {
		n, err := c.Client.CoreV1().Nodes().Get(c.Context(), name, metav1.GetOptions{})
		require.NoError(t, err)
		return n
	}
	unreachable := func(name string) bool {
		return slices.ContainsFunc(get(name).Spec.Taints, func(t corev1.Taint) bool {
			return t.Key == corev1.TaintNodeUnreachable && t.Effect == corev1.TaintEffectNoExecute
		})
	}
	passes := func(condition string, f func() bool) time.Time {
		t.Helper()
		c.Passing(250*time.Millisecond, condition, func() bool { renewLeases(c, nodes); return f() })
		return c.Now()
	}
	begun := c.Now()
	passes("the controller has seen the Leases", func() bool { return c.Since(begun) > 10*time.Second })

	// Half of the zone's Nodes, but fewer than three, die: they are tainted at the usual rate.
	died := c.Now()
	nodes["n0"], nodes["n1"] = false, false
	unknown := passes("one is Unknown", func() bool {
		return controllertest.NodeCondition(get("n0"), corev1.NodeReady).Status == corev1.ConditionUnknown
	})
	require.GreaterOrEqual(t, unknown.Sub(died), 29*time.Second) // counted from the last heartbeat, a step before
	require.Equal(t, "NodeStatusUnknown", controllertest.NodeCondition(get("n0"), corev1.NodeReady).Reason)
	passes("both are tainted", func() bool { return unreachable("n0") && unreachable("n1") })
	require.False(t, unreachable("n2"))
	passes("their pods are not ready", func() bool {
		return controllertest.PodCondition(c.Pod("on-n0"), corev1.PodReady).Status == corev1.ConditionFalse
	})
	c.AwaitEvent("NodeNotReady", "Node n0 status is now: NodeNotReady")

	// One comes back before its pods' tolerations expire.
	c.SetNodeReady("n1", corev1.ConditionTrue)
	nodes["n1"] = true
	passes("its taint is removed", func() bool { return !unreachable("n1") })
	c.AwaitEvent("TaintManagerEviction", "Cancelling deletion of Pod default/on-n1")
	evicted := passes("the pod of the other Node is evicted", c.Goes("on-n0"))
	require.GreaterOrEqual(t, evicted.Sub(died), 89*time.Second)
	require.False(t, c.Goes("on-n1")())

	require.NoError(t, c.Client.CoreV1().Nodes().Delete(c.Context(), "n0", metav1.DeleteOptions{}))
	delete(nodes, "n0")
	passes("an event reports its removal", func() bool {
		list, err := c.Client.CoreV1().Events("default").List(c.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		return slices.ContainsFunc(list.Items, func(e corev1.Event) bool {
			return e.Reason == "RemovingNode" && e.Message == "Node n0 event: Removing Node n0 from Controller"
		})
	})
}
