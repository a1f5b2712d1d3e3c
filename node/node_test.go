package node

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/coxswain-dev/coxswain/internal/kubeversion"
	"github.com/coxswain-dev/coxswain/node/podstate"
	"github.com/coxswain-dev/coxswain/node/process/sandbox"
	"github.com/coxswain-dev/coxswain/node/runtime"
	"github.com/coxswain-dev/coxswain/node/simulated"
	"github.com/coxswain-dev/coxswain/testenv/fakeclient"
	"github.com/coxswain-dev/coxswain/testenv/leak"
)

var start = time.Unix(1_800_000_000, 0)

func TestMain(m *testing.M) {
	sandbox.Main()
	leak.VerifyTestMain(m)
}

// cluster is an agent with client-go's fake API and a fake clock.
type cluster struct {
	*fake.Clientset
	t     *testing.T
	clock *clocktesting.FakeClock
	agent *agent
	// ahead is how far the wall clock is ahead of clock.
	ahead atomic.Int64
	// runs is the runtime; nil is the simulated one.
	runs func(runtime.Runtime) runtime.Runtime
	stop func()
}

// wallClock is the clock of a cluster with a wall time that a test can set independently of its timers.
type wallClock struct {
	*clocktesting.FakeClock
	ahead *atomic.Int64
}

func (c wallClock) Now() time.Time { return c.FakeClock.Now().Add(time.Duration(c.ahead.Load())) }

func (c wallClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

func startCluster(t *testing.T, o Options, objects ...apiruntime.Object) *cluster {
	t.Helper()
	c := newCluster(t, objects...)
	c.start(o)
	return c
}

func newCluster(t *testing.T, objects ...apiruntime.Object) *cluster {
	c := &cluster{Clientset: fakeclient.New(objects...), t: t,
		clock: clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0))}
	var made atomic.Int64
	c.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, apiruntime.Object, error) {
		if pod, ok := action.(clienttesting.CreateAction).GetObject().(*corev1.Pod); ok && pod.UID == "" {
			pod.UID = types.UID(fmt.Sprintf("made-%d", made.Add(1)))
		}
		return false, nil, nil
	})
	return c
}

func (c *cluster) start(o Options) {
	o.Clock = wallClock{c.clock, &c.ahead}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	require.NoError(c.t, o.complete())
	a, err := newAgent([]*link{{client: c}}, o, func(h runtime.Host) (runtime.Runtime, error) {
		r, err := o.newRuntime(h)
		if c.runs != nil {
			r = c.runs(r)
		}
		return r, err
	})
	require.NoError(c.t, err)
	c.agent = a
	go func() { done <- a.run(ctx) }()
	stopped := false
	c.stop = func() {
		if !stopped {
			stopped = true
			cancel()
			require.NoError(c.t, <-done)
		}
	}
	c.t.Cleanup(c.stop)
}

func (c *cluster) eventually(what string, condition func() bool) {
	c.t.Helper()
	require.Eventually(c.t, condition, time.Minute, time.Millisecond, what)
}

// later advances the clock until condition holds.
func (c *cluster) later(step time.Duration, what string, condition func() bool) {
	c.t.Helper()
	c.eventually(what, func() bool {
		if condition() {
			return true
		}
		c.clock.Step(step)
		return false
	})
}

func (c *cluster) pod(name string) *corev1.Pod {
	pod, err := c.CoreV1().Pods("default").Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		return &corev1.Pod{}
	}
	return pod
}

func (c *cluster) create(pod *corev1.Pod) {
	c.t.Helper()
	_, err := c.CoreV1().Pods("default").Create(context.Background(), pod, metav1.CreateOptions{})
	require.NoError(c.t, err)
}

func boundPod(name, node string, annotations ...string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name), Generation: 1,
			Annotations: map[string]string{}},
		Spec: corev1.PodSpec{
			NodeName: node, RestartPolicy: corev1.RestartPolicyAlways,
			Containers: []corev1.Container{{Name: "c", Image: "nginx:1"}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending,
			Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}},
	}
	for i := 0; i < len(annotations); i += 2 {
		pod.Annotations[annotations[i]] = annotations[i+1]
	}
	return pod
}

var findCondition = podstate.Condition

func ready(pod *corev1.Pod) bool {
	c := findCondition(pod.Status.Conditions, corev1.PodReady)
	return c != nil && c.Status == corev1.ConditionTrue
}

func TestNode_RegistersAndRenewsItsLease(t *testing.T) {
	c := startCluster(t, Options{Count: 2})
	for i := range 2 {
		name := fmt.Sprintf("node-%d", i)
		var node *corev1.Node
		c.eventually("it is registered", func() bool {
			var err error
			node, err = c.CoreV1().Nodes().Get(context.Background(), name, metav1.GetOptions{})
			return err == nil
		})
		require.Equal(t, fmt.Sprintf("10.244.%d.0/22", 4*i), node.Spec.PodCIDR)
		require.Equal(t, name, node.Labels[corev1.LabelHostname])
		require.Equal(t, kubeversion.Coxswain, node.Status.NodeInfo.KubeletVersion)
		require.EqualValues(t, 1000, node.Status.Allocatable.Pods().Value())
		require.Equal(t, corev1.NodeReady, node.Status.Conditions[3].Type)
		require.Equal(t, corev1.ConditionTrue, node.Status.Conditions[3].Status)
	}
	renewed := func() time.Time {
		lease, err := c.CoordinationV1().Leases("kube-node-lease").Get(context.Background(), "node-0",
			metav1.GetOptions{})
		if err != nil {
			return time.Time{}
		}
		require.Equal(t, "node-0", *lease.Spec.HolderIdentity)
		require.EqualValues(t, 40, *lease.Spec.LeaseDurationSeconds)
		require.Equal(t, "Node", lease.OwnerReferences[0].Kind)
		return lease.Spec.RenewTime.Time
	}
	c.eventually("the first heartbeat", func() bool { return !renewed().IsZero() })
	first := renewed()
	c.later(time.Second, "the second", func() bool { return renewed().After(first) })
	require.GreaterOrEqual(t, renewed().Sub(first), 10*time.Second)
}

func TestNode_AdoptsAndDoesNotRecreate(t *testing.T) {
	theirs := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-0", Labels: map[string]string{"mine": "kept"}}}
	c := startCluster(t, Options{}, theirs)
	c.eventually("it is adopted", func() bool {
		node, err := c.CoreV1().Nodes().Get(context.Background(), "node-0", metav1.GetOptions{})
		return err == nil && node.Labels["mine"] == "kept" && node.Labels[corev1.LabelOSStable] == "linux" &&
			node.Spec.PodCIDR == "10.244.0.0/22" && len(node.Status.Conditions) == 4
	})
	require.NoError(t, c.CoreV1().Nodes().Delete(context.Background(), "node-0", metav1.DeleteOptions{}))
	c.create(boundPod("sentinel", "node-0")) // seen after the deletion
	c.later(10*time.Second, "the sentinel runs", func() bool { return ready(c.pod("sentinel")) })
	_, err := c.CoreV1().Nodes().Get(context.Background(), "node-0", metav1.GetOptions{})
	require.Error(t, err)
}

func TestNode_DropsConditionsThatItsAgentNoLongerReports(t *testing.T) {
	earlier := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-0"}, Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{
			{Type: "KernelDeadlock", Status: corev1.ConditionFalse},
			{Type: "coxswain.dev/DNSReady", Status: corev1.ConditionTrue},
		}}}
	c := startCluster(t, Options{}, earlier)
	c.eventually("it is adopted", func() bool { return nodeCondition(c.node(), corev1.NodeReady).Status != "" })
	require.Empty(t, nodeCondition(c.node(), "coxswain.dev/DNSReady"), "a simulated node has no DNS server")
	require.NotEmpty(t, nodeCondition(c.node(), "KernelDeadlock"), "it is another agent's")
}

func TestNode_StartsAPodWithOneWrite(t *testing.T) {
	c := startCluster(t, Options{})
	c.create(boundPod("p", "node-0"))
	c.later(time.Second, "it is ready", func() bool { return ready(c.pod("p")) })
	s := c.pod("p").Status
	require.Equal(t, corev1.PodRunning, s.Phase)
	require.Equal(t, "10.244.0.2", s.PodIP)
	require.Equal(t, "10.244.0.1", s.HostIP)
	require.EqualValues(t, 1, s.ObservedGeneration)
	require.Equal(t, corev1.PodQOSBestEffort, s.QOSClass)
	require.NotNil(t, s.ContainerStatuses[0].State.Running)
	require.True(t, *s.ContainerStatuses[0].Started)
	require.Contains(t, s.ContainerStatuses[0].ContainerID, "simulated://")
	var order []corev1.PodConditionType
	for _, condition := range s.Conditions {
		require.Equal(t, corev1.ConditionTrue, condition.Status)
		order = append(order, condition.Type)
	}
	require.Equal(t, []corev1.PodConditionType{"PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady",
		"PodScheduled"}, order)
	writes := 0
	for _, action := range c.Actions() {
		if action.Matches("patch", "pods/status") {
			writes++
		}
	}
	require.Equal(t, 1, writes)
}

func TestNode_EndsADeletedPod(t *testing.T) {
	c := startCluster(t, Options{})
	pod := boundPod("p", "node-0")
	c.create(pod)
	c.later(time.Second, "it is ready", func() bool { return ready(c.pod("p")) })
	// The fake API has no graceful deletion, so the test sets the timestamp.
	pod = c.pod("p").DeepCopy()
	now, grace := metav1.NewTime(c.clock.Now()), int64(30)
	pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &now, &grace
	_, err := c.CoreV1().Pods("default").Update(context.Background(), pod, metav1.UpdateOptions{})
	require.NoError(t, err)
	c.eventually("it is gone", func() bool { return c.pod("p").Name == "" })
	c.create(boundPod("next", "node-0"))
	c.later(time.Second, "the next is ready", func() bool { return ready(c.pod("next")) })
	require.NotEqual(t, "10.244.0.2", c.pod("next").Status.PodIP, "an address rests before it is used again")
}

func TestNode_RunsJobsToTheirEnd(t *testing.T) {
	c := startCluster(t, Options{})
	pod := boundPod("job", "node-0", simulated.AnnotationRunFor, "1m")
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	c.create(pod)
	c.later(time.Second, "it runs", func() bool { return c.pod("job").Status.Phase == corev1.PodRunning })
	c.later(10*time.Second, "it succeeds", func() bool { return c.pod("job").Status.Phase == corev1.PodSucceeded })
	ended := c.pod("job").Status.ContainerStatuses[0].State.Terminated
	require.Equal(t, "Completed", ended.Reason)
	require.Equal(t, time.Minute, ended.FinishedAt.Sub(ended.StartedAt.Time))
}

func TestNode_CompletesPodsThatAreNotRestarted(t *testing.T) {
	c := startCluster(t, Options{CompleteAfter: new(5 * time.Second)})
	pod := boundPod("job", "node-0")
	pod.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
	always := corev1.ContainerRestartPolicyAlways
	pod.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "i"},
		{Name: "sidecar", Image: "s", RestartPolicy: &always}}
	c.create(pod)
	c.create(boundPod("server", "node-0"))
	c.later(time.Second, "it runs", func() bool { return c.pod("job").Status.Phase == corev1.PodRunning })
	c.later(time.Second, "it succeeds", func() bool { return c.pod("job").Status.Phase == corev1.PodSucceeded })
	require.NotNil(t, c.pod("job").Status.InitContainerStatuses[1].State.Terminated, "the sidecar ends with it")
	require.True(t, ready(c.pod("server")))
}

func TestNode_AdoptsPodsOfAnEarlierAgent(t *testing.T) {
	c := startCluster(t, Options{})
	c.create(boundPod("old", "node-0"))
	c.later(time.Second, "it is ready", func() bool { return ready(c.pod("old")) })
	before := c.pod("old").Status
	c.stop()
	c.ClearActions()
	c.clock.Step(time.Hour)
	c.start(Options{})
	c.create(boundPod("new", "node-0"))
	c.later(time.Second, "the new one is ready", func() bool { return ready(c.pod("new")) })
	require.Equal(t, before, c.pod("old").Status)
	require.Equal(t, "10.244.0.3", c.pod("new").Status.PodIP)
	for _, action := range c.Actions() {
		if action.Matches("patch", "pods/status") {
			require.NotContains(t, fmt.Sprint(action), "old")
		}
	}
}
