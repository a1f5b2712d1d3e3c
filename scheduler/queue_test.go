package scheduler

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// testQueue has one plugin, "rooms", that waits for pods to leave.
func testQueue() (*queue, *clocktesting.FakeClock) {
	c := clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0))
	return newQueue(c, func(*framework.PodInfo) *framework.Status { return nil },
		func(_ *framework.PodInfo, plugin string) []framework.EventHint {
			if plugin != "rooms" {
				return nil
			}
			return []framework.EventHint{{Event: framework.AssignedPodDeleted}}
		}), c
}

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
		q.set(framework.NewPodInfo(pod), false)
		c.Step(time.Millisecond)
	}
	for _, want := range []string{"urgent", "first", "second"} {
		require.Equal(t, want, q.pop().info.Pod.Name)
	}
}

func TestQueue_BacksOffFromOneToTenSeconds(t *testing.T) {
	t.Parallel()
	q, c := testQueue()
	q.set(framework.NewPodInfo(testPod("p", "1")), false)
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

func TestQueue_SleepsUntilAnEventThatMayHelp(t *testing.T) {
	t.Parallel()
	q, c := testQueue()
	q.set(framework.NewPodInfo(testPod("p", "1")), false)
	q.failed(q.pop(), byRooms)
	c.Step(time.Minute)
	q.happened(framework.NodeAdded, nil)
	require.Equal(t, 1, q.counts()[unschedulable])
	q.happened(framework.AssignedPodDeleted, nil)
	require.Equal(t, 1, q.counts()[active], "its back-off is long over")
}

func TestQueue_MissesNoEventWhileAPodIsInFlight(t *testing.T) {
	t.Parallel()
	q, _ := testQueue()
	q.set(framework.NewPodInfo(testPod("p", "1")), false)
	a := q.pop()
	q.happened(framework.AssignedPodDeleted, nil)
	q.failed(a, byRooms)
	require.Equal(t, 1, q.counts()[backoff])
}

func TestQueue_TriesAForgottenPodAfterFiveMinutes(t *testing.T) {
	t.Parallel()
	q, c := testQueue()
	q.set(framework.NewPodInfo(testPod("p", "1")), false)
	q.failed(q.pop(), byRooms)
	q.flush()
	c.Step(maxUnschedulable)
	q.flush()
	require.Equal(t, 1, q.counts()[active])
}

func TestQueue_ForgetsPodsThatWentWhileInFlight(t *testing.T) {
	t.Parallel()
	q, _ := testQueue()
	pod := framework.NewPodInfo(testPod("p", "1"))
	q.set(pod, false)
	a := q.pop()
	q.remove(pod.Pod.UID)
	q.set(pod, false) // and came again, as another entry
	q.failed(a, byRooms)
	require.Equal(t, map[place]int{active: 1, backoff: 0, unschedulable: 0, gated: 0}, q.counts())
}
