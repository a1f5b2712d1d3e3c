package node

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/node/runtime"
)

// renews is a runtime with sandboxes that have to be renewed every hour by the wall clock.
type renews struct {
	runtime.Runtime
	now   func() time.Time
	count atomic.Int64
}

func (r *renews) SetUp(_ context.Context, _ *corev1.Pod, addresses []string) (runtime.Sandbox, error) {
	r.count.Add(1)
	return runtime.Sandbox{Addresses: addresses, Renewal: r.now().Add(time.Hour)}, nil
}

// pass lets time pass in steps, and waits after each until the agent has no work left.
func (c *cluster) pass(d, step time.Duration) {
	c.t.Helper()
	for ; d > 0; d -= step {
		c.clock.Step(min(d, step))
		c.eventually("the pods are synced", func() bool { return c.agent.podQueue.Busy() == "" })
	}
}

// The wall clock is set forwards and back while a pod waits for its deadline and for the renewal of its sandbox.
func TestNode_WaitsForMomentsOnTheWallClock(t *testing.T) {
	t.Parallel()
	c, r := newCluster(t), &renews{}
	r.now = wallClock{c.clock, &c.ahead}.Now
	c.runs = func(s runtime.Runtime) runtime.Runtime { r.Runtime = s; return r }
	c.start(Options{})
	pod := boundPod("p", "node-0")
	pod.Spec.ActiveDeadlineSeconds = new(int64(3 * 3600))
	c.create(pod)
	c.later(time.Second, "it is ready", func() bool { return ready(c.pod("p")) })
	require.EqualValues(t, 1, r.count.Load())

	c.ahead.Store(int64(-time.Hour))
	c.pass(90*time.Minute, 10*time.Minute)
	require.EqualValues(t, 1, r.count.Load(), "by the wall clock 30 minutes have passed")
	c.ahead.Store(int64(time.Hour))
	c.pass(time.Minute, 10*time.Second)
	require.EqualValues(t, 2, r.count.Load(), "the sandbox is renewed as soon as the clock is read again")
	require.True(t, ready(c.pod("p")))

	c.ahead.Store(int64(-2 * time.Hour))
	c.pass(3*time.Hour, 10*time.Minute)
	require.True(t, ready(c.pod("p")), "by the wall clock the pod has run for less than three hours")
	c.ahead.Store(0)
	c.pass(time.Minute, 10*time.Second)
	require.Equal(t, "DeadlineExceeded", c.pod("p").Status.Reason)
	count := r.count.Load()
	c.pass(3*time.Hour, 10*time.Minute)
	require.Equal(t, count, r.count.Load(), "a pod that has ended is not renewed")
}
