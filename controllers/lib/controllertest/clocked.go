package controllertest

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/internal/clock/quiescence"
	"github.com/coxswain-dev/coxswain/node"
	"github.com/coxswain-dev/coxswain/testenv"
)

// Clocked is a cluster in which controllers and nodes run on a simulated clock, which the test advances.
type Clocked struct {
	*Cluster
	*clocktesting.FakeClock
	Settings controllers.Settings // for the next Restart
	names    []string
	stop     func()
	work     *quiescence.Group // reports the controllers' remaining work
}

// NewClocked starts the named controllers and the given number of simulated nodes, and a scheduler if there are
// any.
func NewClocked(t testing.TB, nodes int, names ...string) *Clocked {
	options := []testenv.Option{testenv.OrExternal(), testenv.WithControllers(), testenv.WithNodes(0)}
	if nodes == 0 {
		options = append(options, testenv.WithoutScheduler())
	}
	c := ClockedAt(t, testenv.Start(t, options...), names...)
	c.Restart()
	if nodes > 0 {
		c.StartNodes(node.Options{Count: nodes})
		c.AwaitReadyNodes(nodes)
	}
	return c
}

// NewClockedWith starts the named controllers with settings, without nodes.
func NewClockedWith(t testing.TB, settings controllers.Settings, names ...string) *Clocked {
	c := ClockedAt(t, testenv.Start(t, testenv.OrExternal(), testenv.WithControllers(), testenv.WithNodes(0),
		testenv.WithoutScheduler()), names...)
	c.Settings = settings
	c.Restart()
	return c
}

// ClockedAt returns the cluster of a configuration. Restart starts the named controllers.
func ClockedAt(t testing.TB, config *rest.Config, names ...string) *Clocked {
	return &Clocked{Cluster: At(t, config), FakeClock: clocktesting.NewFakeClock(metav1.Now().Time), names: names,
		work: &quiescence.Group{}}
}

// Restart stops the controllers at any point of their work, and starts new ones without any state.
func (c *Clocked) Restart() {
	c.StopControllers()
	c.stop = c.StartControllers(controllers.Options{Controllers: c.names, Clock: c.FakeClock, Settings: c.Settings,
		Quiescence: c.work})
}

// StopControllers stops the controllers, if they run, and waits for them.
func (c *Clocked) StopControllers() {
	if c.stop != nil {
		c.stop()
	}
	c.stop = nil
}

// StartNodes runs simulated nodes on the clock.
func (c *Clocked) StartNodes(o node.Options) (stop func()) {
	o.Clock, o.Log = c.FakeClock, slog.New(slog.DiscardHandler)
	return c.Background(func(ctx context.Context) {
		if err := node.Run(ctx, c.Config, o); err != nil {
			c.Errorf("nodes: %v", err)
		}
	})
}

// AwaitReadyNodes waits until exactly n Nodes are ready.
func (c *Clocked) AwaitReadyNodes(n int) {
	c.Helper()
	c.Reaches("the nodes are ready", func() bool {
		list, err := c.Client.CoreV1().Nodes().List(c.Context(), metav1.ListOptions{})
		require.NoError(c, err)
		ready := 0
		for i := range list.Items {
			if NodeCondition(&list.Items[i], corev1.NodeReady).Status == corev1.ConditionTrue {
				ready++
			}
		}
		return ready == n
	})
}

// Reaches waits for f while the clock advances in steps that are only long enough for retries.
func (c *Clocked) Reaches(condition string, f func() bool) {
	c.Helper()
	c.Passing(10*time.Millisecond, condition, f)
}

// Passing waits for f while the clock advances by step.
func (c *Clocked) Passing(step time.Duration, condition string, f func() bool) {
	c.Helper()
	c.Eventually(condition, func() bool {
		if f() {
			return true
		}
		c.Step(step)
		return false
	})
}

// AwaitRest waits, while the clock advances in small steps, until the controllers have been idle for ten steps.
// It does not wait for watches that are held (Faults.Hold).
func (c *Clocked) AwaitRest() {
	c.Helper()
	idle := 0
	c.Reaches("the controllers have nothing to do", func() bool {
		idle++
		if len(c.work.Busy(0)) > 0 {
			idle = 0
		}
		return idle == 10
	})
}
