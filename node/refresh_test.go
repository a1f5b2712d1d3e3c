package node

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/node/runtime"
)

// countsSetUps is a runtime that counts the calls of SetUp.
type countsSetUps struct {
	runtime.Runtime
	count atomic.Int64
}

func (r *countsSetUps) SetUp(_ context.Context, _ *corev1.Pod, addresses []string) (
	runtime.Sandbox, error) {
	r.count.Add(1)
	return runtime.Sandbox{Addresses: addresses}, nil
}

func TestNode_RefreshesVolumesAtMostOnceASecond(t *testing.T) {
	t.Parallel()
	c, r := newCluster(t), &countsSetUps{}
	c.runs = func(s runtime.Runtime) runtime.Runtime { r.Runtime = s; return r }
	c.start(Options{})
	pod := boundPod("p", "node-0")
	c.create(pod)
	c.later(time.Second, "it is ready", func() bool { return ready(c.pod("p")) })
	require.EqualValues(t, 1, r.count.Load())
	c.clock.Step(runtime.RefreshPause)
	c.agent.Refresh(runtime.KeyOf(pod))
	c.eventually("what changed is there at once", func() bool { return r.count.Load() == 2 })

	for range 1000 {
		c.agent.Refresh(runtime.KeyOf(pod))
	}
	c.create(boundPod("sentinel", "node-0"))
	c.eventually("everything before it was looked at", func() bool {
		return ready(c.pod("sentinel")) && c.agent.podQueue.Busy() == ""
	})
	require.EqualValues(t, 3, r.count.Load(), "the sentinel's own")
	c.later(runtime.RefreshPause, "the thousand changes are there", func() bool { return r.count.Load() == 4 })

	c.clock.Step(runtime.RefreshPause)
	changed := c.pod("p").DeepCopy()
	changed.Labels = map[string]string{"new": "label"}
	_, err := c.CoreV1().Pods("default").Update(context.Background(), changed, metav1.UpdateOptions{})
	require.NoError(t, err)
	c.eventually("the downward API shows a label", func() bool { return r.count.Load() == 5 })
}
