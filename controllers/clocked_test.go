package controllers_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/node"
	"github.com/coxswain-dev/coxswain/testenv"
)

// clocked is a control plane of ours in which the time of controllers and nodes is moved by hand.
type clocked struct {
	*cluster
	*clocktesting.FakeClock
	names    []string
	settings controllers.Settings
	stop     func()
}

// newClocked runs the named controllers, or all, and so many nodes.
func newClocked(t testing.TB, nodes int, names ...string) *clocked {
	c := newClockedAt(t, testenv.Start(t, testenv.OrExternal(), testenv.WithControllers(), testenv.WithNodes(0)))
	c.names = names
	c.restart()
	if nodes > 0 {
		c.startNodes(node.Options{Count: nodes})
		c.awaitReadyNodes(nodes)
	}
	return c
}

// newClockedAt runs nothing yet.
func newClockedAt(t testing.TB, config *rest.Config) *clocked {
	return &clocked{
		cluster:   &cluster{TB: t, config: config, client: kubernetes.NewForConfigOrDie(config), ctx: t.Context()},
		FakeClock: clocktesting.NewFakeClock(metav1.Now().Time),
	}
}

func (c *clocked) awaitReadyNodes(n int) {
	c.Helper()
	c.reaches("the nodes are ready", func() bool {
		list, err := c.client.CoreV1().Nodes().List(c.ctx, metav1.ListOptions{})
		require.NoError(c, err)
		ready := 0
		for i := range list.Items {
			if nodeCondition(&list.Items[i], corev1.NodeReady).Status == corev1.ConditionTrue {
				ready++
			}
		}
		return ready == n
	})
}

// restart stops the controllers wherever they are and starts others, which know nothing.
func (c *clocked) restart() {
	if c.stop != nil {
		c.stop()
	}
	c.stop = c.startControllers(controllers.Options{Controllers: c.names, Clock: c.FakeClock, Settings: c.settings})
}

// startNodes runs simulated nodes on the clock.
func (c *clocked) startNodes(o node.Options) (stop func()) {
	o.Clock, o.Log = c.FakeClock, slog.New(slog.DiscardHandler)
	return c.background(func(ctx context.Context) {
		if err := node.Run(ctx, c.config, o); err != nil {
			c.Errorf("nodes: %v", err)
		}
	})
}

func nodeCondition(n *corev1.Node, t corev1.NodeConditionType) corev1.NodeCondition {
	for _, c := range n.Status.Conditions {
		if c.Type == t {
			return c
		}
	}
	return corev1.NodeCondition{}
}

// reaches waits for f while time passes in steps so small that they only let retries happen.
func (c *clocked) reaches(what string, f func() bool) {
	c.Helper()
	c.passing(10*time.Millisecond, what, f)
}

// passingSeconds waits for f while time passes by the second, so that what failed some times is tried again.
func (c *clocked) passingSeconds(what string, f func() bool) {
	c.Helper()
	c.passing(time.Second, what, f)
}

// passing waits for f while time passes in such steps.
func (c *clocked) passing(step time.Duration, what string, f func() bool) {
	c.Helper()
	c.eventually(what, func() bool {
		if f() {
			return true
		}
		c.Step(step)
		return false
	})
}
