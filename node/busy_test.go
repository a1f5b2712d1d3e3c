package node

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/coxswain-dev/coxswain/internal/clock/quiescence"
)

func TestBusy_EndsWithTheLastStatus(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	writing, goOn := make(chan struct{}, 10), make(chan struct{})
	c.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		writing <- struct{}{}
		<-goOn
		return false, nil, nil
	})
	var parts quiescence.Group
	c.start(Options{StartDelay: time.Minute, Quiescence: &parts})
	idle := func() bool { return len(parts.Busy(0)) == 0 }
	c.eventually("the Node is there", func() bool { return c.agent.missing.Load() == 0 && idle() })
	c.create(boundPod("p", "node-0"))
	<-writing
	require.Equal(t, []string{"nodes: pod default/p is being worked on"}, parts.Busy(0))
	goOn <- struct{}{}
	c.eventually("the pod starts, which takes a minute", idle)
	require.Equal(t, corev1.PodPending, c.pod("p").Status.Phase)
	c.clock.Step(time.Minute)
	require.False(t, idle(), "the next step is due")
	close(goOn)
	c.eventually("it runs", idle)
	require.True(t, ready(c.pod("p")))
	c.stop()
	require.Empty(t, parts.Busy(0))
}
