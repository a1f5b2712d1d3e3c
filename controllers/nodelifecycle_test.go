package controllers_test

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
)

// bareNode makes a Node that is ready and has no agent: it is silent from the first.
func (c *clocked) bareNode(name string, taints ...corev1.Taint) {
	_, err := c.client.CoreV1().Nodes().Create(c.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{Taints: taints}}, metav1.CreateOptions{})
	require.NoError(c, err)
	c.says(name, corev1.ConditionTrue)
}

// says puts the condition Ready in the place of all that a Node has. It is a patch, for controllers write to Nodes as well.
func (c *clocked) says(node string, ready corev1.ConditionStatus) {
	patch := mustJSON(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: ready, LastHeartbeatTime: metav1.NewTime(c.Now())},
	}}})
	_, err := c.client.CoreV1().Nodes().Patch(c.ctx, node, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	require.NoError(c, err)
}

// podOn makes a pod that runs and is ready on a node. A finalizer keeps what is deleted to be looked at.
func (c *clocked) podOn(node, name string, tolerations ...corev1.Toleration) {
	pods := c.client.CoreV1().Pods("default")
	pod, err := pods.Create(c.ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{"example.com/keep"}},
		Spec: corev1.PodSpec{NodeName: node, Tolerations: tolerations, Containers: []corev1.Container{{Name: "c", Image: "i"}}}}, metav1.CreateOptions{})
	require.NoError(c, err)
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	_, err = pods.UpdateStatus(c.ctx, pod, metav1.UpdateOptions{})
	require.NoError(c, err)
}

func (c *clocked) pod(name string) *corev1.Pod {
	pod, err := c.client.CoreV1().Pods("default").Get(c.ctx, name, metav1.GetOptions{})
	require.NoError(c, err)
	return pod
}

func (c *clocked) goes(name string) func() bool {
	return func() bool { return c.pod(name).DeletionTimestamp != nil }
}

func podCondition(pod *corev1.Pod, t corev1.PodConditionType) corev1.PodCondition {
	for _, c := range pod.Status.Conditions {
		if c.Type == t {
			return c
		}
	}
	return corev1.PodCondition{}
}

func TestNodeLifecycle_MovesPodsFromANodeThatDied(t *testing.T) {
	t.Parallel()
	c := newClocked(t, 2, "nodelifecycle", "taint-eviction")
	begin := c.Now()
	c.bareNode("dead")
	c.podOn("dead", "p")
	c.passing(time.Second, "the node is Unknown", func() bool {
		node, err := c.client.CoreV1().Nodes().Get(c.ctx, "dead", metav1.GetOptions{})
		require.NoError(t, err)
		return nodeCondition(node, corev1.NodeReady).Status == corev1.ConditionUnknown
	})
	require.GreaterOrEqual(t, c.Since(begin), 50*time.Second)
	c.passing(time.Second, "its pod is not ready", func() bool {
		return podCondition(c.pod("p"), corev1.PodReady).Status == corev1.ConditionFalse
	})
	// DefaultTolerationSeconds lets it stay for five minutes more.
	c.passing(time.Second, "the pod goes", c.goes("p"))
	require.GreaterOrEqual(t, c.Since(begin), 350*time.Second)
	require.Equal(t, "DeletionByTaintManager", podCondition(c.pod("p"), corev1.DisruptionTarget).Reason)
	c.awaitEvent("TaintManagerEviction", "Marking for deletion Pod default/p")
}

func TestNodeLifecycle_TaintsByCondition(t *testing.T) {
	t.Parallel()
	c := newClocked(t, 0, "nodelifecycle")
	theirs := corev1.Taint{Key: "example.com/theirs", Effect: corev1.TaintEffectNoSchedule}
	c.bareNode("n", theirs)
	taints := func(want ...string) {
		t.Helper()
		c.reaches("the taints", func() bool {
			node, err := c.client.CoreV1().Nodes().Get(c.ctx, "n", metav1.GetOptions{})
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
		_, err := c.client.CoreV1().Nodes().Patch(c.ctx, "n", types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{}, subresources...)
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

func TestTaintEviction_ByToleration(t *testing.T) {
	t.Parallel()
	c := newClocked(t, 0, "taint-eviction")
	c.bareNode("n")
	tolerate := func(seconds *int64) corev1.Toleration {
		return corev1.Toleration{Key: "example.com/out", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: seconds}
	}
	c.podOn("n", "intolerant")
	c.podOn("n", "patient", tolerate(new(int64(60))))
	c.podOn("n", "spared", tolerate(new(int64(100000))))
	c.podOn("n", "tolerant", tolerate(nil))
	begin := c.Now()
	_, err := c.client.CoreV1().Nodes().Patch(c.ctx, "n", types.MergePatchType, []byte(`{"spec":{"taints":[{"key":"example.com/out","effect":"NoExecute"}]}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	c.reaches("the intolerant goes", c.goes("intolerant"))
	c.passing(time.Second, "the patient goes", c.goes("patient"))
	require.GreaterOrEqual(t, c.Since(begin), time.Minute)
	_, err = c.client.CoreV1().Nodes().Patch(c.ctx, "n", types.MergePatchType, []byte(`{"spec":{"taints":null}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	c.awaitEvent("TaintManagerEviction", "Cancelling deletion of Pod default/spared")
	require.False(t, c.goes("spared")())
	require.False(t, c.goes("tolerant")())
}

// beats are the heartbeats of bare Nodes that live, by their Leases.
func (c *clocked) beats(nodes map[string]bool) {
	leases := c.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	for name, alive := range nodes {
		if !alive {
			continue
		}
		lease, err := leases.Get(c.ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			lease, err = leases.Create(c.ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		}
		require.NoError(c, err)
		lease.Spec.RenewTime = new(metav1.NewMicroTime(c.Now()))
		_, err = leases.Update(c.ctx, lease, metav1.UpdateOptions{})
		require.NoError(c, err)
	}
}

// TestNodeLifecycle_ByTheFlags counts what the flags promise when Nodes die, and when one comes back in time.
func TestNodeLifecycle_ByTheFlags(t *testing.T) {
	t.Parallel()
	c := newClocked(t, 0, "nodelifecycle", "taint-eviction")
	c.settings.Node.MonitorPeriod, c.settings.Node.MonitorGracePeriod, c.settings.Node.EvictionRate = 2*time.Second, 30*time.Second, 1
	c.restart()
	nodes := map[string]bool{"n0": true, "n1": true, "n2": true, "n3": true}
	for name := range nodes {
		c.bareNode(name)
	}
	minute := corev1.Toleration{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(60))}
	c.podOn("n0", "on-n0", minute)
	c.podOn("n1", "on-n1", minute)
	get := func(name string) *corev1.Node {
		n, err := c.client.CoreV1().Nodes().Get(c.ctx, name, metav1.GetOptions{})
		require.NoError(t, err)
		return n
	}
	given := func(name string) bool {
		return slices.ContainsFunc(get(name).Spec.Taints, func(t corev1.Taint) bool {
			return t.Key == corev1.TaintNodeUnreachable && t.Effect == corev1.TaintEffectNoExecute
		})
	}
	passes := func(what string, f func() bool) time.Time {
		t.Helper()
		c.passing(250*time.Millisecond, what, func() bool { c.beats(nodes); return f() })
		return c.Now()
	}
	begun := c.Now()
	passes("their Leases are known", func() bool { return c.Since(begun) > 10*time.Second })

	// Half of a zone's Nodes, but fewer than three: they are given up.
	died := c.Now()
	nodes["n0"], nodes["n1"] = false, false
	unknown := passes("one is Unknown", func() bool { return nodeCondition(get("n0"), corev1.NodeReady).Status == corev1.ConditionUnknown })
	require.GreaterOrEqual(t, unknown.Sub(died), 29*time.Second) // counted from the last heartbeat, a step before
	require.Equal(t, "NodeStatusUnknown", nodeCondition(get("n0"), corev1.NodeReady).Reason)
	passes("both are given up", func() bool { return given("n0") && given("n1") })
	require.False(t, given("n2"))
	passes("their pods are not ready", func() bool { return podCondition(c.pod("on-n0"), corev1.PodReady).Status == corev1.ConditionFalse })
	c.awaitEvent("NodeNotReady", "Node n0 status is now: NodeNotReady")

	// One comes back before its pods have had enough of waiting.
	c.says("n1", corev1.ConditionTrue)
	nodes["n1"] = true
	passes("it is taken back", func() bool { return !given("n1") })
	c.awaitEvent("TaintManagerEviction", "Cancelling deletion of Pod default/on-n1")
	gone := passes("the other's pod goes", c.goes("on-n0"))
	require.GreaterOrEqual(t, gone.Sub(died), 89*time.Second)
	require.False(t, c.goes("on-n1")())

	require.NoError(t, c.client.CoreV1().Nodes().Delete(c.ctx, "n0", metav1.DeleteOptions{}))
	delete(nodes, "n0")
	passes("its end is told", func() bool {
		list, err := c.client.CoreV1().Events("default").List(c.ctx, metav1.ListOptions{})
		require.NoError(t, err)
		return slices.ContainsFunc(list.Items, func(e corev1.Event) bool {
			return e.Reason == "RemovingNode" && e.Message == "Node n0 event: Removing Node n0 from Controller"
		})
	})
}
