package scheduler

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/coxswain-dev/coxswain/internal/clock/virtualtime"
	"github.com/coxswain-dev/coxswain/scheduler/framework"
	"github.com/coxswain-dev/coxswain/scheduler/plugins"
)

// testQueue returns a queue with one plugin, "rooms", that waits for pods to leave.
func testQueue() (*queue, *clocktesting.FakeClock) {
	c := clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0))
	return newQueue(queueOptions{
		clock: c, initialBackoff: time.Second, maxBackoff: 10 * time.Second, less: plugins.PrioritySort{}.Less,
		preEnqueue: func(pod *framework.PodInfo) *framework.Status {
			return plugins.SchedulingGates{}.PreEnqueue(pod.Pod)
		},
		hints: func(_ *framework.PodInfo, plugin string) []framework.EventHint {
			switch plugin {
			case "rooms":
				return []framework.EventHint{{Event: podDeleted.ClusterEvent}}
			case "SchedulingGates":
				return plugins.SchedulingGates{}.EventsToRegister()
			}
			return nil
		},
	}), c
}

var (
	podDeleted = &framework.Change{ClusterEvent: framework.ClusterEvent{Resource: framework.AssignedPod,
		Action: framework.Delete}}
	nodeAdded = &framework.Change{ClusterEvent: framework.ClusterEvent{Resource: framework.Node,
		Action: framework.Add}}
)

var byRooms = map[string]struct{}{"rooms": {}}

func TestQueue_HighestPriorityThenFirstCome(t *testing.T) {
	t.Parallel()
	q, c := testQueue()
	high := int32(10)
	for _, name := range []string{"first", "second", "urgent"} {
		pod := testPod(name, "1")
		if name == "urgent" {
			pod.Spec.Priority = &high
		}
		q.set(framework.NewPodInfo(pod), nil)
		c.Step(time.Millisecond)
	}
	for _, want := range []string{"urgent", "first", "second"} {
		require.Equal(t, want, q.pop().info.Pod.Name)
	}
}

func TestQueue_MovesAPodWhosePriorityChanges(t *testing.T) {
	t.Parallel()
	q, _ := testQueue()
	high := int32(10)
	urgent := testPod("late", "1")
	urgent.Spec.Priority = &high
	for _, name := range []string{"first", "late"} {
		q.set(framework.NewPodInfo(testPod(name, "1")), nil)
	}
	q.set(framework.NewPodInfo(urgent), nil)
	require.Equal(t, "late", q.pop().info.Pod.Name)
	require.Equal(t, "first", q.pop().info.Pod.Name)
}

func TestQueue_BacksOffFromOneToTenSeconds(t *testing.T) {
	t.Parallel()
	q, c := testQueue()
	q.set(framework.NewPodInfo(testPod("p", "1")), nil)
	for _, seconds := range []time.Duration{1, 2, 4, 8, 10, 10} {
		q.failed(q.pop(), nil)
		require.Equal(t, 1, q.counts()[backoff])
		c.Step(seconds*time.Second - 1)
		q.flush()
		require.Equal(t, 1, q.counts()[backoff])
		c.Step(1)
		q.flush()
		require.Equal(t, 1, q.counts()[active])
	}
}

func TestQueue_TriesRejectedPodsBeforeTheirBackoffIsOverIfItIsEmpty(t *testing.T) {
	t.Parallel()
	q, c := testQueue()
	high := int32(10)
	for _, name := range []string{"error", "low", "high", "later"} {
		pod := testPod(name, "1")
		if name == "high" {
			pod.Spec.Priority = &high
		}
		q.set(framework.NewPodInfo(pod), nil)
		a := q.pop()
		if name == "later" {
			c.Step(time.Second)
		}
		if name == "error" {
			q.failed(a, nil)
			continue
		}
		q.happened(podDeleted)
		q.failed(a, byRooms)
	}
	require.Equal(t, 4, q.counts()[backoff])
	q.set(framework.NewPodInfo(testPod("new", "1")), nil)
	for _, want := range []string{"new", "high", "low", "later"} {
		require.Equal(t, want, q.pop().info.Pod.Name)
	}
	q.flush()
	require.Equal(t, "error", q.pop().info.Pod.Name, "its back-off is over")
	require.Zero(t, q.counts()[backoff])
}

func TestQueue_SleepsUntilAnEventThatMayHelp(t *testing.T) {
	t.Parallel()
	q, c := testQueue()
	q.set(framework.NewPodInfo(testPod("p", "1")), nil)
	q.failed(q.pop(), byRooms)
	c.Step(time.Minute)
	q.happened(nodeAdded)
	require.Equal(t, 1, q.counts()[unschedulable])
	q.happened(podDeleted)
	require.Equal(t, 1, q.counts()[active], "its back-off is long over")
}

func TestQueue_MissesNoEventWhileAPodIsInFlight(t *testing.T) {
	t.Parallel()
	q, _ := testQueue()
	q.set(framework.NewPodInfo(testPod("p", "1")), nil)
	a := q.pop()
	q.happened(podDeleted)
	q.failed(a, byRooms)
	require.Equal(t, 1, q.counts()[backoff])
	require.Zero(t, q.changesKept())
}

// A change of the pod itself while it is tried counts as well: the plugin may have waited for it.
func TestQueue_MissesNoChangeOfAPodInFlight(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change *framework.Change
		want   place
	}{
		"of what plugins read": {podDeleted, backoff},
		"that helps nobody":    {nodeAdded, unschedulable},
		"of its status":        {nil, unschedulable},
	} {
		q, _ := testQueue()
		q.set(framework.NewPodInfo(testPod("p", "1")), nil)
		a := q.pop()
		is := framework.NewPodInfo(testPod("p", "2"))
		q.set(is, tt.change)
		q.failed(a, byRooms)
		require.Equal(t, 1, q.counts()[tt.want], name)
		require.Zero(t, q.changesKept(), name)
		q.happened(podDeleted)
		require.Same(t, is, q.pop().info, "the next attempt is at the pod as it is now")
	}
}

func TestQueue_KeepsChangesOnlyForEarlierAttempts(t *testing.T) {
	t.Parallel()
	q, c := testQueue()
	q.set(framework.NewPodInfo(testPod("a", "1")), nil)
	q.happened(podDeleted)
	require.Zero(t, q.changesKept(), "nobody is in flight")
	c.Step(time.Millisecond)
	q.set(framework.NewPodInfo(testPod("b", "1")), nil)
	a := q.pop()
	q.happened(podDeleted)
	b := q.pop()
	require.Equal(t, 1, q.changesKept())
	q.failed(b, byRooms)
	require.Equal(t, 1, q.counts()[unschedulable], "what happened before does not help")
	require.Equal(t, 1, q.changesKept())
	q.happened(nodeAdded)
	q.failed(a, byRooms)
	require.Equal(t, 1, q.counts()[backoff])
	require.Zero(t, q.changesKept())
}

func TestQueue_AdmitsAGatedPodWhenItsGatesAreRemoved(t *testing.T) {
	t.Parallel()
	q, _ := testQueue()
	pod := testPod("p", "1")
	pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}}
	was, is := framework.NewPodInfo(pod), framework.NewPodInfo(testPod("p", "1"))
	q.set(was, nil)
	q.happened(podDeleted)
	require.Equal(t, 1, q.counts()[gated])
	q.set(is, &framework.Change{ClusterEvent: framework.ClusterEvent{
		Resource: framework.UnscheduledPod, Action: podChange(was, is)}, Old: was, New: is})
	require.Equal(t, 1, q.counts()[active])
}

func TestQueue_TriesAForgottenPodAfterFiveMinutes(t *testing.T) {
	t.Parallel()
	q, c := testQueue()
	q.set(framework.NewPodInfo(testPod("p", "1")), nil)
	q.failed(q.pop(), byRooms)
	q.flush()
	c.Step(maxUnschedulable)
	q.flush()
	require.Equal(t, 1, q.counts()[active])
}

func TestQueue_ForgetsPodsThatWereDeletedInFlight(t *testing.T) {
	t.Parallel()
	q, _ := testQueue()
	pod := framework.NewPodInfo(testPod("p", "1"))
	q.set(pod, nil)
	a := q.pop()
	q.remove(pod.Pod.UID)
	q.set(pod, nil) // added again, as another entry
	q.failed(a, byRooms)
	require.Equal(t, map[place]int{active: 1, backoff: 0, unschedulable: 0, gated: 0}, q.counts())
}

func TestQueue_IsBusyUntilItsPodsOnlyWait(t *testing.T) {
	t.Parallel()
	q, c := testQueue()
	waits := map[types.UID]bool{}
	busy := func() string { return q.busy(func(uid types.UID) bool { return waits[uid] }) }
	pod := testPod("p", "1")
	q.set(framework.NewPodInfo(pod), nil)
	require.Empty(t, busy(), "it does not lead")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); q.run(ctx) }()
	require.Eventually(t, func() bool { return busy() == "default/p waits for its turn" }, time.Minute,
		time.Millisecond)
	a := q.pop()
	require.Equal(t, "default/p is being scheduled", busy())
	waits[pod.UID] = true
	require.Empty(t, busy(), "a plugin has it wait")
	waits[pod.UID] = false
	q.happened(podDeleted)
	q.failed(a, byRooms)
	require.Equal(t, "default/p waits for its turn", busy(), "it backs off, and nothing else is there")
	q.failed(q.pop(), nil)
	require.Equal(t, "default/p is due for another try", busy(), "by a clock that goes by itself")
	c.Step(2 * time.Second)
	q.failed(q.pop(), byRooms)
	require.Empty(t, busy())
	c.Step(time.Minute)
	q.happened(podDeleted)
	require.NotEmpty(t, busy())
	q.bound(q.pop())
	require.Empty(t, busy())
	cancel()
	<-ended
}

func TestQueue_EndsABackoffOnAManualClock(t *testing.T) {
	t.Parallel()
	q, _ := testQueue()
	c := virtualtime.New(time.Unix(1_800_000_000, 0))
	q.clock, q.leading = c, true
	none := func(types.UID) bool { return false }
	q.set(framework.NewPodInfo(testPod("p", "1")), nil)
	q.failed(q.pop(), nil)
	require.Empty(t, q.busy(none), "it waits for the clock")
	require.NoError(t, c.Advance(t.Context(), time.Second))
	require.NotEmpty(t, q.busy(none), "its back-off is over, whether or not the queue has noticed")
}
