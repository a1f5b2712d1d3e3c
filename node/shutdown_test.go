package node

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestNode_EndsItsPodsAtShutdown(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Options{ShutdownGracePeriod: 30 * time.Second,
		ShutdownGracePeriodCriticalPods: 10 * time.Second})
	vital := boundPod("vital", "node-0")
	vital.Spec.Priority = new(int32(systemCriticalPriority))
	c.create(vital)
	c.create(boundPod("p", "node-0"))
	for _, name := range []string{"vital", "p"} {
		c.later(time.Second, name+" runs", func() bool { return ready(c.pod(name)) })
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		c.stop()
	}()
	c.later(100*time.Millisecond, "the agent ends", func() bool {
		select {
		case <-stopped:
			return true
		default:
			return false
		}
	})
	for _, name := range []string{"vital", "p"} {
		s := c.pod(name).Status
		require.Equal(t, corev1.PodFailed, s.Phase)
		require.Equal(t, "Terminated", s.Reason)
		require.Equal(t, "Pod was terminated in response to imminent node shutdown.", s.Message)
		require.Equal(t, s.Message, findCondition(s.Conditions, corev1.DisruptionTarget).Message)
	}
	condition := nodeCondition(c.node(), corev1.NodeReady)
	require.Equal(t, corev1.ConditionFalse, condition.Status)
	require.Equal(t, "node is shutting down", condition.Message)

	c.start(Options{})
	c.create(boundPod("next", "node-0"))
	c.later(time.Second, "the node is ready again", func() bool {
		return nodeCondition(c.node(), corev1.NodeReady).Status == corev1.ConditionTrue && ready(c.pod("next"))
	})
}

func TestNode_RejectsPodsLikeTheKubelet(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Options{})
	c.eventually("the Node is there", func() bool { return c.node().Name != "" })
	withPort := func(name, ip string, port int32) *corev1.Pod {
		pod := boundPod(name, "node-0")
		pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: port, HostIP: ip}}
		return pod
	}
	c.create(withPort("first", "", 8080))
	c.later(time.Second, "it runs", func() bool { return ready(c.pod("first")) })
	c.create(withPort("other port", "", 8081))
	c.later(time.Second, "it runs", func() bool { return ready(c.pod("other port")) })
	windows := boundPod("windows", "node-0")
	windows.Spec.OS = &corev1.PodOS{Name: corev1.Windows}
	labelled := boundPod("labelled", "node-0")
	labelled.Labels = map[string]string{corev1.LabelOSStable: "windows"}
	for _, tt := range []struct {
		pod             *corev1.Pod
		reason, message string
	}{
		{withPort("same port", "10.0.0.1", 8080), "NodePorts",
			"Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"},
		{windows, "PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS"},
		{labelled, "PodOSSelectorNodeLabelDoesNotMatch",
			"Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"},
	} {
		c.create(tt.pod)
		c.later(time.Second, tt.reason, func() bool { return c.pod(tt.pod.Name).Status.Phase == corev1.PodFailed })
		s := c.pod(tt.pod.Name).Status
		require.Equal(t, tt.reason, s.Reason)
		require.Equal(t, "Pod was rejected: "+tt.message, s.Message)
	}

	node := c.node().DeepCopy()
	node.Spec.Taints = []corev1.Taint{{Key: "maintenance", Effect: corev1.TaintEffectNoExecute}}
	_, err := c.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{})
	require.NoError(t, err)
	tries := 0
	c.later(time.Second, "who does not tolerate is refused", func() bool {
		tries++
		name := fmt.Sprint("tainted-", tries)
		c.create(boundPod(name, "node-0")) // the agent has yet to see the taint
		c.later(time.Second, "it is decided", func() bool {
			return ready(c.pod(name)) || c.pod(name).Status.Phase == corev1.PodFailed
		})
		return c.pod(name).Status.Reason == "TaintToleration"
	})
	tolerant := boundPod("tolerant", "node-0")
	tolerant.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	c.create(tolerant)
	c.later(time.Second, "who does runs", func() bool { return ready(c.pod("tolerant")) })
}
