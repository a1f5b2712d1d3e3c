package scheduler

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/coxswain-dev/coxswain/testenv/fakeclient"
	"github.com/coxswain-dev/coxswain/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// cluster is a scheduler over client-go's fake API, which carries out bindings as an API server does.
type cluster struct {
	*fake.Clientset
	t       *testing.T
	clock   *clocktesting.FakeClock
	metrics *prometheus.Registry
	mu      sync.Mutex
	refuse  int // how many bindings to reject
	check   func(pod *corev1.Pod, node string) error
}

func startCluster(t *testing.T, o Options, objects ...runtime.Object) *cluster {
	t.Helper()
	c := &cluster{
		Clientset: fakeclient.New(objects...), t: t,
		clock: clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0)), metrics: prometheus.NewRegistry(),
	}
	c.PrependReactor("create", "pods", c.bind)
	o.Clock, o.Metrics = c.clock, c.metrics
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx, c, o) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return c
}

func (c *cluster) bind(action clienttesting.Action) (bool, runtime.Object, error) {
	if action.GetSubresource() != "binding" {
		return false, nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	binding := action.(clienttesting.CreateAction).GetObject().(*corev1.Binding)
	if c.refuse > 0 {
		c.refuse--
		return true, nil, fmt.Errorf("the API server is on fire")
	}
	o, err := c.Tracker().Get(corev1.SchemeGroupVersion.WithResource("pods"), binding.Namespace, binding.Name)
	if err != nil {
		return true, nil, err
	}
	pod := o.(*corev1.Pod).DeepCopy()
	if pod.Spec.NodeName != "" {
		return true, nil, fmt.Errorf("pod %s is already assigned to node %q", pod.Name, pod.Spec.NodeName)
	}
	if c.check != nil {
		if err := c.check(pod, binding.Target.Name); err != nil {
			return true, nil, err
		}
	}
	pod.Spec.NodeName = binding.Target.Name
	return true, binding, c.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), pod, pod.Namespace)
}

func (c *cluster) create(pods ...*corev1.Pod) {
	c.t.Helper()
	for _, pod := range pods {
		_, err := c.CoreV1().Pods(pod.Namespace).Create(context.Background(), pod, metav1.CreateOptions{})
		require.NoError(c.t, err)
	}
}

func (c *cluster) get(name string) *corev1.Pod {
	pod, err := c.CoreV1().Pods("default").Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		return &corev1.Pod{}
	}
	return pod
}

func (c *cluster) eventually(what string, condition func() bool) {
	c.t.Helper()
	require.Eventually(c.t, condition, time.Minute, time.Millisecond, what)
}

func (c *cluster) pending(at place) float64 {
	families, err := c.metrics.Gather()
	require.NoError(c.t, err)
	for _, f := range families {
		for _, m := range f.Metric {
			if f.GetName() == "scheduler_pending_pods" && len(m.Label) > 0 && m.Label[0].GetValue() == string(at) {
				return m.GetGauge().GetValue()
			}
		}
	}
	return 0 // not registered yet
}

func testNode(name, cpu, pods string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name),
			Labels: map[string]string{corev1.LabelHostname: name}},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("8Gi"),
			corev1.ResourcePods: resource.MustParse(pods),
		}},
	}
}

func testPod(name, cpu string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name)},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)},
		}}}},
	}
}

func TestScheduler_SpreadsPodsOverNodesByFreeResources(t *testing.T) {
	c := startCluster(t, Options{}, testNode("a", "4", "110"), testNode("b", "4", "110"))
	for i := range 8 {
		c.create(testPod(fmt.Sprintf("p%d", i), "1"))
	}
	used := func() map[string]int {
		used := map[string]int{}
		for i := range 8 {
			used[c.get(fmt.Sprintf("p%d", i)).Spec.NodeName]++
		}
		return used
	}
	c.eventually("all pods are bound", func() bool { return used()[""] == 0 })
	require.Equal(t, map[string]int{"a": 4, "b": 4}, used())
	c.eventually("an event tells so", func() bool {
		events, _ := c.CoreV1().Events("default").List(context.Background(), metav1.ListOptions{})
		for _, e := range events.Items {
			if e.Reason == "Scheduled" && e.InvolvedObject.Name == "p0" {
				return e.Message == "Successfully assigned default/p0 to "+c.get("p0").Spec.NodeName
			}
		}
		return false
	})
}

func TestScheduler_ReportsWhyAPodHasNoNodeAndWakesItWhenOneIsAdded(t *testing.T) {
	tainted := testNode("tainted", "64", "110")
	tainted.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}
	c := startCluster(t, Options{}, testNode("small", "1", "110"), tainted)
	c.create(testPod("big", "2"))
	condition := func() corev1.PodCondition {
		for _, condition := range c.get("big").Status.Conditions {
			return condition
		}
		return corev1.PodCondition{}
	}
	c.eventually("the condition is written", func() bool { return condition().Type == corev1.PodScheduled })
	require.Equal(t, corev1.ConditionFalse, condition().Status)
	require.Equal(t, "Unschedulable", condition().Reason)
	require.Equal(t, "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint(s). "+
		"preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.", condition().Message)
	c.eventually("it sleeps", func() bool { return c.pending(unschedulable) == 1 })

	_, err := c.CoreV1().Nodes().Create(context.Background(), testNode("large", "8", "110"), metav1.CreateOptions{})
	require.NoError(t, err)
	c.eventually("it has its node, and did not wait for its back-off", func() bool { return c.get("big").Spec.NodeName == "large" })
}

func TestScheduler_WakesPodsWhenAnotherLeaves(t *testing.T) {
	c := startCluster(t, Options{}, testNode("only", "1", "110"))
	c.create(testPod("first", "1"))
	c.eventually("the first is bound", func() bool { return c.get("first").Spec.NodeName == "only" })
	c.create(testPod("second", "1"))
	c.eventually("the second sleeps", func() bool { return c.pending(unschedulable) == 1 })
	require.NoError(t, c.CoreV1().Pods("default").Delete(context.Background(), "first", metav1.DeleteOptions{}))
	c.eventually("the second is bound", func() bool { return c.get("second").Spec.NodeName == "only" })
}

func TestScheduler_RetriesAfterAFailedBinding(t *testing.T) {
	c := startCluster(t, Options{})
	c.mu.Lock()
	c.refuse = 1
	c.mu.Unlock()
	_, err := c.CoreV1().Nodes().Create(context.Background(), testNode("only", "1", "110"), metav1.CreateOptions{})
	require.NoError(t, err)
	c.create(testPod("p", "1"))
	// Whichever of node and pod was seen first, the pod fails, backs off and is bound eventually: its assumed room
	// was released.
	c.eventually("it is bound", func() bool {
		c.clock.Step(time.Second)
		return c.get("p").Spec.NodeName == "only"
	})
}

func TestScheduler_HoldsGatedPodsBack(t *testing.T) {
	c := startCluster(t, Options{}, testNode("only", "1", "110"))
	pod := testPod("p", "1")
	pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "wait"}}
	c.create(pod)
	c.eventually("it is gated", func() bool { return c.pending(gated) == 1 })
	pod = c.get("p").DeepCopy()
	pod.Spec.SchedulingGates = nil
	_, err := c.CoreV1().Pods("default").Update(context.Background(), pod, metav1.UpdateOptions{})
	require.NoError(t, err)
	c.eventually("it is bound", func() bool { return c.get("p").Spec.NodeName == "only" })
}

func TestScheduler_IgnoresPodsOfOtherSchedulers(t *testing.T) {
	c := startCluster(t, Options{}, testNode("only", "1", "110"))
	pod := testPod("theirs", "1")
	pod.Spec.SchedulerName = "another"
	c.create(pod, testPod("ours", "1"))
	c.eventually("ours is bound", func() bool { return c.get("ours").Spec.NodeName == "only" })
	require.Empty(t, c.get("theirs").Spec.NodeName)
}

func TestScheduler_SchedulesOnlyWhileItLeads(t *testing.T) {
	c := startCluster(t, Options{LeaderElect: true, Identity: "me"}, testNode("only", "1", "110"))
	c.create(testPod("p", "1"))
	c.eventually("it is bound", func() bool { return c.get("p").Spec.NodeName == "only" })
	lease, err := c.CoordinationV1().Leases("kube-system").Get(context.Background(), "kube-scheduler",
		metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "me", *lease.Spec.HolderIdentity)
}
func TestScheduler_PreemptsPodsOfLowerPriority(t *testing.T) {
	only := testNode("only", "2", "110")
	c := startCluster(t, Options{}, only)
	c.create(testPod("low", "1"), testPod("lowest", "1"))
	c.eventually("the node is full", func() bool {
		return c.get("low").Spec.NodeName+c.get("lowest").Spec.NodeName == "onlyonly"
	})
	negative, high := int32(-1), int32(1000)
	lowest := c.get("lowest").DeepCopy()
	lowest.Spec.Priority = &negative
	_, err := c.CoreV1().Pods("default").Update(context.Background(), lowest, metav1.UpdateOptions{})
	require.NoError(t, err)

	urgent := testPod("urgent", "1")
	urgent.Spec.Priority = &high
	c.create(urgent)
	c.eventually("the victim is gone and the pod has its room", func() bool {
		c.clock.Step(time.Second)
		return c.get("urgent").Spec.NodeName == "only"
	})
	require.Equal(t, "only", c.get("low").Spec.NodeName)
	require.Empty(t, c.get("lowest").Name)
}
