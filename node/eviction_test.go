package node

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/node/runtime"
	"github.com/coxswain-dev/coxswain/node/simulated"
)

func TestEvictionOptions_MatchTheKubelet(t *testing.T) {
	t.Parallel()
	o := EvictionOptions{
		Hard:            []string{"memory.available<100Mi", "nodefs.available<10%", "imagefs.available<0%"},
		Soft:            []string{"memory.available<1Gi"},
		SoftGracePeriod: []string{"memory.available=1m30s"}, MinimumReclaim: []string{"memory.available=500Mi"},
	}
	got, err := o.thresholds()
	require.NoError(t, err)
	require.Equal(t, []threshold{
		{signal: memoryAvailable, least: level{quantity: 100 << 20}, hard: true, reclaim: level{quantity: 500 << 20}},
		{signal: nodefsAvailable, least: level{part: 0.1}, hard: true},
		{signal: memoryAvailable, least: level{quantity: 1 << 30}, grace: 90 * time.Second,
			reclaim: level{quantity: 500 << 20}},
	}, got)
	for statement, message := range map[string]string{
		"memory.available=1Gi":  `--eviction-hard: "memory.available=1Gi" is not SIGNAL<VALUE with a signal such as memory.available, nodefs.available or pid.available`,
		"memory.free<1Gi":       `--eviction-hard: "memory.free<1Gi" is not SIGNAL<VALUE with a signal such as memory.available, nodefs.available or pid.available`,
		"memory.available<-1":   `--eviction-hard: "memory.available<-1": must not be negative`,
		"nodefs.available<120%": `--eviction-hard: "nodefs.available<120%": must be a percentage of 0 or more and less than 100`,
	} {
		_, err := (&EvictionOptions{Hard: []string{statement}}).thresholds()
		require.EqualError(t, err, message)
	}
	_, err = (&EvictionOptions{Soft: []string{"pid.available<100"}}).thresholds()
	require.EqualError(t, err,
		"--eviction-soft-grace-period: grace period must be specified for the soft eviction threshold pid.available")
}

func TestPressure_FollowsGraceAndTransitionPeriods(t *testing.T) {
	t.Parallel()
	hard := threshold{signal: nodefsAvailable, least: level{part: 0.1}, hard: true}
	soft := threshold{signal: memoryAvailable, least: level{quantity: 100}, grace: 90 * time.Second,
		reclaim: level{quantity: 50}}
	all := []threshold{hard, soft}
	disk, memory := int64(500), int64(80)
	var p pressure
	now := start
	judge := func(after time.Duration) ([]shortfall, bool) {
		now = now.Add(after)
		return p.judge(all, map[signal]runtime.Supply{nodefsAvailable: {Capacity: 1000, Available: disk},
			memoryAvailable: {Capacity: 1000, Available: memory}},
			5*time.Minute, now)
	}
	due, changed := judge(0)
	require.Empty(t, due, "the soft threshold has its grace")
	require.True(t, changed)
	require.Equal(t, []corev1.NodeConditionType{corev1.NodeMemoryPressure}, p.now())
	memory = 100
	_, changed = judge(time.Minute)
	require.False(t, changed, "the condition stays")
	memory = 99
	judge(time.Minute)
	disk = 99
	due, _ = judge(90 * time.Second)
	require.Len(t, due, 2)
	require.Equal(t, soft, due[0].threshold, "memory first")
	require.Equal(t, []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure}, p.now())
	memory, disk = 149, 100
	due, _ = judge(time.Second)
	require.Len(t, due, 1, "not so much is free as has to be reclaimed")
	memory = 150
	due, _ = judge(time.Second)
	require.Empty(t, due)
	judge(5*time.Minute - 2*time.Second)
	require.Equal(t, []corev1.NodeConditionType{corev1.NodeMemoryPressure}, p.now(), "the disk's last sign was earlier")
	judge(2 * time.Second)
	require.Empty(t, p.now())
}

func TestRank_OrdersByExcessThenByPriority(t *testing.T) {
	t.Parallel()
	use := func(name string, priority int32, request, taken int64) podUse {
		pod := boundPod(name, "n")
		pod.Spec.Priority = &priority
		pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: *resource.NewQuantity(
			request, resource.BinarySI)}
		return podUse{pod: pod, taken: taken}
	}
	names := func(of corev1.ResourceName) (all []string) {
		uses := []podUse{
			use("within", 0, 100, 90), use("important", 9, 10, 500), use("over a little", 0, 10, 20),
			use("over a lot", 0, 10, 80), use("far within", 0, 100, 10),
		}
		rank(uses, of)
		for _, u := range uses {
			all = append(all, u.pod.Name)
		}
		return all
	}
	require.Equal(t, []string{"over a lot", "over a little", "important", "within", "far within"},
		names(corev1.ResourceMemory))
	require.Equal(t, []string{"within", "over a lot", "over a little", "far within", "important"}, names(resourcePIDs))
}

func (c *cluster) node() *corev1.Node {
	node, err := c.CoreV1().Nodes().Get(context.Background(), "node-0", metav1.GetOptions{})
	if err != nil {
		return &corev1.Node{}
	}
	return node
}

func (c *cluster) annotateNode(patch string) {
	c.t.Helper()
	_, err := c.CoreV1().Nodes().Patch(context.Background(), "node-0", types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{`+patch+`}}}`), metav1.PatchOptions{})
	require.NoError(c.t, err)
}

func nodeCondition(node *corev1.Node, kind corev1.NodeConditionType) corev1.NodeCondition {
	for _, c := range node.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return corev1.NodeCondition{}
}

// eventReasons returns the reasons of all Events.
func (c *cluster) eventReasons() map[string]string {
	events, err := c.CoreV1().Events(metav1.NamespaceAll).List(context.Background(), metav1.ListOptions{})
	require.NoError(c.t, err)
	all := map[string]string{}
	for _, e := range events.Items {
		all[e.Reason] = e.Message
	}
	return all
}

// brief is a step of the clock that is short enough for the agent to follow: it evicts the next pod seconds after the
// last, and removes a condition five minutes after its cause.
const brief = 20 * time.Millisecond

func TestNode_EvictsUntilMemorySuffices(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Options{Capacity: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("4Gi")}})
	request := func(pod *corev1.Pod, memory string) *corev1.Pod {
		pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(
			memory)}
		return pod
	}
	vital := boundPod("vital", "node-0", simulated.AnnotationMemory, "2Gi")
	vital.Spec.Priority = new(int32(systemCriticalPriority))
	c.create(vital)
	c.create(request(boundPod("modest", "node-0", simulated.AnnotationMemory, "500Mi"), "1Gi"))
	c.create(request(boundPod("greedy", "node-0", simulated.AnnotationMemory, "1Gi"), "64Mi"))
	for _, name := range []string{"vital", "modest", "greedy"} {
		c.later(time.Second, name+" runs", func() bool { return ready(c.pod(name)) })
	}
	c.annotateNode(`"sim.coxswain.dev/memory":"512Mi"`)
	c.later(brief, "one pod goes", func() bool { return c.pod("greedy").Status.Phase == corev1.PodFailed })
	s := c.pod("greedy").Status
	require.Equal(t, "Evicted", s.Reason)
	require.Equal(t, "The node was low on resource: memory. Threshold quantity: 100Mi, available: 12288Ki. "+
		"Container c was using 1048576Ki, request is 64Mi, has larger consumption of memory. ", s.Message)
	require.Equal(t, corev1.PodReasonTerminationByKubelet, findCondition(s.Conditions, corev1.DisruptionTarget).Reason)
	c.later(brief, "the Node says so", func() bool {
		return nodeCondition(c.node(), corev1.NodeMemoryPressure).Status == corev1.ConditionTrue
	})
	require.Equal(t, "KubeletHasInsufficientMemory", nodeCondition(c.node(), corev1.NodeMemoryPressure).Reason)
	c.eventually("the events are told", func() bool {
		reasons := c.eventReasons()
		return reasons["EvictionThresholdMet"] == "Attempting to reclaim memory" && reasons["Evicted"] == s.Message
	})

	c.create(boundPod("late", "node-0"))
	c.later(brief, "it is not let in", func() bool { return c.pod("late").Status.Phase == corev1.PodFailed })
	require.Equal(t, "Evicted", c.pod("late").Status.Reason)
	require.Equal(t, "Pod was rejected: The node had condition: [MemoryPressure]. ", c.pod("late").Status.Message)
	c.create(request(boundPod("asks", "node-0", simulated.AnnotationMemory, "1Mi"), "1Mi"))
	c.later(brief, "who says what he needs is", func() bool { return ready(c.pod("asks")) })

	c.later(30*time.Second, "it passes", func() bool {
		return nodeCondition(c.node(), corev1.NodeMemoryPressure).Status == corev1.ConditionFalse
	})
	require.True(t, ready(c.pod("modest")), "who keeps to its requests stays")
	require.True(t, ready(c.pod("vital")), "who is critical stays")
}

// The critical pods are first in rank here, because they have no requests. They stay, and the next pod is evicted.
func TestNode_EvictsNoCriticalPod(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	manifest(t, dir, simulated.AnnotationMemory+": 1Gi")
	c := startCluster(t, Options{StaticPodPath: dir,
		Capacity: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("4Gi")}})
	withPriority := func(name string, priority int32) *corev1.Pod {
		pod := boundPod(name, "node-0", simulated.AnnotationMemory, "1Gi")
		pod.Spec.Priority = &priority
		return pod
	}
	c.create(withPriority("vital", systemCriticalPriority))
	nearly := withPriority("nearly", systemCriticalPriority-1)
	nearly.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("2Gi")}
	c.create(nearly)
	names := []string{"vital", "nearly", "web-node-0"}
	for _, name := range names {
		c.later(time.Second, name+" runs", func() bool { return ready(c.pod(name)) })
	}
	c.annotateNode(`"sim.coxswain.dev/memory":"1000Mi"`)
	c.later(brief, "a pod goes", func() bool {
		return slices.ContainsFunc(names,
			func(name string) bool { return c.pod(name).Status.Phase == corev1.PodFailed })
	})
	require.Equal(t, "Evicted", c.pod("nearly").Status.Reason)
	c.later(30*time.Second, "it passes", func() bool {
		return nodeCondition(c.node(), corev1.NodeMemoryPressure).Status == corev1.ConditionFalse
	})
	require.True(t, ready(c.pod("vital")), "its priority is that of a critical pod")
	require.True(t, ready(c.pod("web-node-0")), "it is static")
}

// stubborn is a runtime whose containers do not end when they are stopped.
type stubborn struct {
	runtime.Runtime
	stopped sync.Map // the time of the first Stop, by the pod's name
}

type stubbornContainer struct {
	runtime.Container
	*stubborn
	pod string
}

func (s *stubborn) Start(ctx context.Context, pod *corev1.Pod, c *corev1.Container, run int32, now time.Time) (
	runtime.Container, error) {
	started, err := s.Runtime.Start(ctx, pod, c, run, now)
	return &stubbornContainer{started, s, pod.Name}, err
}

func (s *stubbornContainer) Stop(now time.Time, _ time.Duration) { s.stopped.LoadOrStore(s.pod, now) }

func (s *stubborn) stoppedAt(pod string) (time.Time, bool) {
	at, ok := s.stopped.Load(pod)
	if !ok {
		return time.Time{}, false
	}
	return at.(time.Time), true
}

// The memory of an evicted pod is not free until the pod has ended. That is no reason to evict another pod, unless
// it takes too long.
func TestNode_EvictsTheNextPodOnlyAfterAWait(t *testing.T) {
	t.Parallel()
	c, s := newCluster(t), &stubborn{}
	c.runs = func(r runtime.Runtime) runtime.Runtime { s.Runtime = r; return s }
	c.start(Options{Capacity: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("4Gi")}})
	c.create(boundPod("greedy", "node-0", simulated.AnnotationMemory, "1Gi"))
	c.create(boundPod("next", "node-0", simulated.AnnotationMemory, "500Mi"))
	for _, name := range []string{"greedy", "next"} {
		c.later(time.Second, name+" runs", func() bool { return ready(c.pod(name)) })
	}
	c.annotateNode(`"sim.coxswain.dev/memory":"3Gi"`)
	var first, second time.Time
	stops := func(pod string, stopped *time.Time) func() bool {
		return func() (ok bool) {
			*stopped, ok = s.stoppedAt(pod)
			return ok
		}
	}
	c.later(brief, "a pod is evicted", stops("greedy", &first))
	c.later(brief, "the next pod is evicted", stops("next", &second))
	require.GreaterOrEqual(t, second.Sub(first), evictionWait)
}

func TestNode_EvictsForDiskAndProcessPressure(t *testing.T) {
	t.Parallel()
	c := startCluster(t,
		Options{Eviction: EvictionOptions{Hard: []string{"nodefs.available<10%", "pid.available<100"}}})
	c.create(boundPod("writer", "node-0", simulated.AnnotationDisk, "1Gi"))
	c.create(boundPod("forker", "node-0", simulated.AnnotationPIDs, "1000"))
	c.create(boundPod("idle", "node-0"))
	for _, name := range []string{"writer", "forker", "idle"} {
		c.later(time.Second, name+" runs", func() bool { return ready(c.pod(name)) })
	}
	c.annotateNode(`"sim.coxswain.dev/disk":"921.5Gi"`)
	c.later(brief, "the writer goes", func() bool { return c.pod("writer").Status.Reason == "Evicted" })
	c.later(brief, "the Node says so", func() bool {
		return nodeCondition(c.node(), corev1.NodeDiskPressure).Reason == "KubeletHasDiskPressure"
	})
	c.annotateNode(`"sim.coxswain.dev/disk":null,"sim.coxswain.dev/pids":"31700"`)
	c.later(brief, "the forker goes", func() bool { return c.pod("forker").Status.Reason == "Evicted" })
	c.later(brief, "the Node says so", func() bool {
		return nodeCondition(c.node(), corev1.NodePIDPressure).Reason == "KubeletHasInsufficientPID"
	})
	require.True(t, ready(c.pod("idle")))
}
