package controllertest

import (
	"context"
	"encoding/json"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// nodeName is the Node of StartNode.
const nodeName = "node"

// CreateNode creates a Node without an agent.
func (c *Cluster) CreateNode(name string, edit func(*corev1.Node)) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if edit != nil {
		edit(n)
	}
	_, err := c.Client.CoreV1().Nodes().Create(c.Context(), n, metav1.CreateOptions{})
	require.NoError(c, err)
}

// Node returns the present state of a Node.
func (c *Cluster) Node(name string) *corev1.Node {
	n, err := c.Client.CoreV1().Nodes().Get(c.Context(), name, metav1.GetOptions{})
	require.NoError(c, err)
	return n
}

// StartNode plays the Node "node" and the scheduler: it binds every pod to the node, makes it ready if ready
// returns true, and ends it when it is deleted.
func (c *Cluster) StartNode(ready func(*corev1.Pod) bool) {
	w, err := c.Client.CoreV1().Pods("").Watch(c.Context(), metav1.ListOptions{})
	require.NoError(c, err)
	c.Background(func(ctx context.Context) {
		defer w.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case e, ok := <-w.ResultChan():
				if !ok {
					return
				}
				if pod, isPod := e.Object.(*corev1.Pod); isPod && e.Type != "DELETED" {
					advance(ctx, c.Client, pod, ready)
				}
			}
		}
	})
}

func advance(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, ready func(*corev1.Pod) bool) {
	pods := client.CoreV1().Pods(pod.Namespace)
	switch {
	case pod.DeletionTimestamp != nil:
		_ = pods.Delete(ctx, pod.Name, *metav1.NewDeleteOptions(0))
	case pod.Spec.NodeName == "":
		_ = pods.Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: pod.Name},
			Target: corev1.ObjectReference{Kind: "Node", Name: nodeName}}, metav1.CreateOptions{})
	case pod.Status.Phase == corev1.PodPending && ready(pod):
		pod.Status.Phase = corev1.PodRunning
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue,
			LastTransitionTime: metav1.Now()}}
		_, _ = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	}
}

// Always is a ready function that makes all pods ready.
func Always(*corev1.Pod) bool { return true }

// CreateReadyNode creates a ready Node without an agent, which sends no heartbeats.
func (c *Clocked) CreateReadyNode(name string, taints ...corev1.Taint) {
	c.CreateNode(name, func(n *corev1.Node) { n.Spec.Taints = taints })
	c.SetNodeReady(name, corev1.ConditionTrue)
}

// SetNodeReady replaces all conditions of a Node by Ready. It sends a patch, because controllers write to
// Nodes, too.
func (c *Clocked) SetNodeReady(node string, ready corev1.ConditionStatus) {
	patch := JSON(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: ready, LastHeartbeatTime: metav1.NewTime(c.Now())},
	}}})
	_, err := c.Client.CoreV1().Nodes().Patch(c.Context(), node, types.MergePatchType, patch, metav1.PatchOptions{},
		"status")
	require.NoError(c, err)
}

// NodeCondition returns the condition of a type, or a zero condition.
func NodeCondition(n *corev1.Node, t corev1.NodeConditionType) corev1.NodeCondition {
	for _, c := range n.Status.Conditions {
		if c.Type == t {
			return c
		}
	}
	return corev1.NodeCondition{}
}

// OnePod returns the spec of a pod with one container "c".
func OnePod() corev1.PodSpec {
	return corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "one"}}}
}

// CreatePodOn creates a running, ready pod on a node. A finalizer keeps it visible after its deletion.
func (c *Cluster) CreatePodOn(node, name string, tolerations ...corev1.Toleration) {
	pods := c.Client.CoreV1().Pods("default")
	spec := OnePod()
	spec.NodeName, spec.Tolerations = node, tolerations
	_, err := pods.Create(c.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name,
		Finalizers: []string{"example.com/keep"}}, Spec: spec}, metav1.CreateOptions{})
	require.NoError(c, err)
	EditStatus(c, pods, name, func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodRunning
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	})
}

// Pods returns all pods.
func (c *Cluster) Pods() []corev1.Pod {
	list, err := c.Client.CoreV1().Pods("default").List(c.Context(), metav1.ListOptions{})
	require.NoError(c, err)
	return list.Items
}

// Pod returns the present state of a pod.
func (c *Cluster) Pod(name string) *corev1.Pod {
	pod, err := c.Client.CoreV1().Pods("default").Get(c.Context(), name, metav1.GetOptions{})
	require.NoError(c, err)
	return pod
}

// Goes returns a condition to wait for: the pod is being deleted.
func (c *Cluster) Goes(name string) func() bool {
	return func() bool { return c.Pod(name).DeletionTimestamp != nil }
}

// EndPod ends a running pod as a node does when its container has exited with a code.
func (c *Cluster) EndPod(name string, phase corev1.PodPhase, code int32, conditions ...corev1.PodCondition) {
	c.Helper()
	EditStatus(c, c.Client.CoreV1().Pods("default"), name, func(p *corev1.Pod) {
		p.Status.Phase = phase
		p.Status.Conditions = conditions
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: code, FinishedAt: metav1.Now()}}}}
	})
}

// PodCondition returns the condition of a type, or a zero condition.
func PodCondition(pod *corev1.Pod, t corev1.PodConditionType) corev1.PodCondition {
	for _, c := range pod.Status.Conditions {
		if c.Type == t {
			return c
		}
	}
	return corev1.PodCondition{}
}

// PodReady reports whether a pod is ready.
func PodReady(p *corev1.Pod) bool {
	return PodCondition(p, corev1.PodReady).Status == corev1.ConditionTrue
}

// CountReady returns how many pods are ready.
func CountReady(pods []*corev1.Pod) (n int) {
	for _, p := range pods {
		if PodReady(p) {
			n++
		}
	}
	return n
}

// JSON returns the JSON encoding of a value that can be encoded, such as an API type.
func JSON(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return text
}
