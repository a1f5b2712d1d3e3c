package node

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/coxswain-dev/coxswain/node/runtime"
	"github.com/coxswain-dev/coxswain/node/simulated"
)

func TestNode_IsInactiveWhileStopped(t *testing.T) {
	t.Parallel()
	client := fake.NewClientset()
	o := Options{Clock: clocktesting.NewFakeClock(start)}
	require.NoError(t, o.complete())
	a, err := newAgent([]*link{{client: client}}, o, o.newRuntime)
	require.NoError(t, err)
	n := a.nodes["node-0"]
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-0",
		Annotations: map[string]string{simulated.AnnotationStopped: "true"}}}
	require.True(t, n.behave(node))
	require.False(t, n.behave(node), "it is known")
	require.NoError(t, a.heartbeat(t.Context(), n))
	require.NoError(t, a.syncNode(t.Context(), n))
	require.NoError(t, a.syncPod(t.Context(), runtime.KeyOf(boundPod("p", "node-0"))))
	require.Empty(t, client.Actions())
}

func TestNode_ContinuesItsPodsAfterAPause(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Options{Count: 1})
	lease := func() time.Time {
		l, err := c.CoordinationV1().Leases("kube-node-lease").Get(context.Background(), "node-0", metav1.GetOptions{})
		if err != nil {
			return time.Time{}
		}
		return l.Spec.RenewTime.Time
	}
	annotate := func(patch string) {
		_, err := c.CoreV1().Nodes().Patch(context.Background(), "node-0", types.MergePatchType, []byte(patch),
			metav1.PatchOptions{})
		require.NoError(t, err)
	}
	c.eventually("its heart beats", func() bool { return !lease().IsZero() })
	annotate(`{"metadata":{"annotations":{"sim.coxswain.dev/paused":"true","sim.coxswain.dev/slow":"1s"}}}`)
	before := lease()
	c.later(time.Second, "it still beats", func() bool { return lease().After(before) })
	c.create(boundPod("p", "node-0"))
	annotate(`{"metadata":{"annotations":{"sim.coxswain.dev/paused":null}}}`)
	c.later(time.Second, "its pods run", func() bool { return ready(c.pod("p")) })
}

// A client advertises an extended resource with a patch of the Node's status. The agent must not remove it.
func TestNode_KeepsResourcesAdvertisedByOtherClients(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Options{Count: 1})
	node := func() *corev1.Node {
		n, err := c.CoreV1().Nodes().Get(context.Background(), "node-0", metav1.GetOptions{})
		require.NoError(t, err)
		return n
	}
	patch := func(text string) {
		_, err := c.CoreV1().Nodes().Patch(context.Background(), "node-0", types.MergePatchType, []byte(text),
			metav1.PatchOptions{}, "status")
		require.NoError(t, err)
	}
	c.eventually("it is registered", func() bool {
		_, err := c.CoreV1().Nodes().Get(context.Background(), "node-0", metav1.GetOptions{})
		return err == nil
	})
	const foo corev1.ResourceName = "example.com/foo"
	amount := func(list corev1.ResourceList) string {
		q, ok := list[foo]
		if !ok {
			return "none"
		}
		return q.String()
	}
	patch(`{"status":{"capacity":{"example.com/foo":"5"},"allocatable":{"example.com/stray":"1"}}}`)
	beats := func() time.Time { return lastHeartbeat(node()) }
	before := beats()
	c.later(10*time.Second, "it can be allocated", func() bool { return amount(node().Status.Allocatable) == "5" })
	c.later(10*time.Second, "the status is written again", func() bool { return beats().After(before) })
	require.Equal(t, "5", amount(node().Status.Capacity))
	require.NotContains(t, node().Status.Allocatable, corev1.ResourceName("example.com/stray"))
	require.EqualValues(t, 1000, node().Status.Allocatable.Pods().Value())

	asking := func(name, amount string) *corev1.Pod {
		pod := boundPod(name, "node-0")
		resources := corev1.ResourceList{foo: resource.MustParse(amount),
			"example.com/of-the-cluster": resource.MustParse("1")}
		pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: resources, Limits: resources}
		return pod
	}
	c.create(asking("first", "3"))
	c.later(10*time.Millisecond, "it has what it asks for", func() bool { return ready(c.pod("first")) })
	c.create(asking("second", "3"))
	c.later(10*time.Millisecond, "there is not enough", func() bool {
		return c.pod("second").Status.Reason == "OutOfexample.com/foo"
	})

	patch(`{"status":{"capacity":{"example.com/foo":null}}}`)
	c.later(10*time.Second, "what is withdrawn can no longer be allocated", func() bool {
		return amount(node().Status.Allocatable) == "none"
	})
	require.Equal(t, "none", amount(node().Status.Capacity))
}

func TestPod_IsRejectedWithoutRoom(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Options{Count: 1})
	big := func(name, cpu string) *corev1.Pod {
		pod := boundPod(name, "node-0")
		pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
		return pod
	}
	c.create(big("first", "20"))
	c.later(10*time.Millisecond, "it runs", func() bool { return ready(c.pod("first")) })
	c.create(big("second", "20"))
	c.later(10*time.Millisecond, "it is refused", func() bool {
		return c.pod("second").Status.Phase == corev1.PodFailed
	})
	require.Equal(t, "OutOfcpu", c.pod("second").Status.Reason)
	require.Equal(t, "Pod was rejected: Node didn't have enough resource: cpu, requested: 20000, used: 20000, "+
		"capacity: 32000", c.pod("second").Status.Message)
	require.Empty(t, c.pod("second").Status.ContainerStatuses, "kubectl shows the reason, and no container to come")
	elsewhere := boundPod("elsewhere", "node-0")
	elsewhere.Spec.NodeSelector = map[string]string{"disk": "ssd"}
	c.create(elsewhere)
	c.later(10*time.Millisecond, "it is refused", func() bool {
		return c.pod("elsewhere").Status.Reason == "NodeAffinity"
	})

	require.NoError(t, c.CoreV1().Pods("default").Delete(context.Background(), "first", metav1.DeleteOptions{}))
	c.create(big("third", "30"))
	c.later(10*time.Millisecond, "there is room again", func() bool { return ready(c.pod("third")) })
}
