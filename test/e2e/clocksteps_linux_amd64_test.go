//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/coxswain-dev/coxswain/test/wallclock"
)

// graceOfNodes is the node monitor grace period here. Nodes renew their leases every ten seconds.
const graceOfNodes = 12 * time.Second

// TestClocks_StepByAnHourAndBack steps the wall clock of each part of a control plane by an hour and back, in both
// directions, and then all clocks at once. New pods run after each step, existing pods keep running, and no node is
// considered dead.
func TestClocks_StepByAnHourAndBack(t *testing.T) {
	t.Parallel()
	e := startEtcd(t, true)
	c := e.apiserver(dataDir(t))
	elected := []string{"--leader-elect-lease-duration=4s", "--leader-elect-renew-deadline=3s",
		"--leader-elect-retry-period=300ms"}
	parts := []struct {
		name  string
		p     *process
		lease string // renewed by the part
	}{
		{"etcd", e.process, ""},
		{"API server", c.server, ""},
		{"controllers", c.component("controllers", append(elected, "--node-monitor-grace-period="+graceOfNodes.String(),
			"--node-monitor-period=1s")...), "kube-system/kube-controller-manager"},
		{"scheduler", c.component("scheduler", elected...), "kube-system/kube-scheduler"},
		{"nodes", c.component("node", "--nodes", "3"), "kube-node-lease/node-1"},
	}
	c.nodesReady(3)
	c.newPodRuns("before")
	seen := c.watchSteady()
	var clocks []*wallclock.Clock
	for _, part := range parts {
		clock, err := wallclock.Of(part.p.cmd.Process.Pid)
		require.NoError(t, err)
		t.Cleanup(func() { _ = clock.Close() })
		clocks = append(clocks, clock)
	}
	n := 0
	step := func(part string, ahead time.Duration, stepped ...*wallclock.Clock) {
		t.Helper()
		for _, clock := range stepped {
			require.NoError(t, clock.Step(ahead))
		}
		n++
		from := time.Now()
		created := c.newPodRuns(fmt.Sprint("after-", n))
		t.Logf("%-12s %+3.0f h: a new pod ran after %4d ms", part, ahead.Hours(), time.Since(from).Milliseconds())
		if part == "API server" || part == "all" {
			require.WithinDuration(t, time.Now().Add(ahead), created, time.Minute)
		}
		for _, part := range parts {
			require.True(t, part.p.running(), "%s has ended: %s", part.name, part.p.out.String())
		}
	}
	for i, part := range parts {
		for _, ahead := range []time.Duration{time.Hour, 0, -time.Hour, 0} {
			step(part.name, ahead, clocks[i])
			if part.lease != "" {
				c.awaitRenewal(part.lease, ahead)
			}
		}
	}
	for _, ahead := range []time.Duration{time.Hour, 0, -time.Hour, 0} {
		step("all", ahead, clocks...)
		time.Sleep(graceOfNodes + time.Second) // long enough to evict the pods of a node that is considered dead
		seen.lostNothing()
	}
	seen.check(n)
}

// awaitRenewal waits until a Lease is renewed with the time of a clock that is ahead by this much.
func (c *cluster) awaitRenewal(lease string, ahead time.Duration) {
	c.t.Helper()
	namespace, name, _ := strings.Cut(lease, "/")
	eventually(c.t, time.Minute, lease+" is renewed", func() bool {
		have, err := c.client.CoordinationV1().Leases(namespace).Get(c.t.Context(), name, metav1.GetOptions{})
		return err == nil && time.Until(have.Spec.RenewTime.Add(-ahead)).Abs() < time.Minute
	})
}

// steady is the informers' view of nodes and pods that must not change.
type steady struct {
	*cluster
	mu   sync.Mutex
	lost []string
	pods cache.SharedIndexInformer
}

func (c *cluster) watchSteady() *steady {
	c.t.Helper()
	s := &steady{cluster: c}
	factory := informers.NewSharedInformerFactory(c.client, 0)
	s.pods = factory.Core().V1().Pods().Informer()
	lost := func(format string, args ...any) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.lost = append(s.lost, fmt.Sprintf(format, args...))
	}
	_, err := factory.Core().V1().Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(_, o any) {
			node := o.(*corev1.Node)
			for _, condition := range node.Status.Conditions {
				if condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue {
					lost("node %s is not ready: %s", node.Name, condition.Message)
				}
			}
			for _, taint := range node.Spec.Taints {
				lost("node %s has the taint %s", node.Name, taint.ToString())
			}
		},
		DeleteFunc: func(any) { lost("a node is deleted") },
	})
	require.NoError(c.t, err)
	_, err = s.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		DeleteFunc: func(any) { lost("a pod is deleted") },
	})
	require.NoError(c.t, err)
	ctx, stop := context.WithCancel(context.Background())
	c.t.Cleanup(func() { stop(); factory.Shutdown() })
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	return s
}

// check requires that no event was lost, and that the informer has the pods of all Deployments.
func (s *steady) check(deployments int) {
	s.t.Helper()
	eventually(s.t, time.Minute, "the informer has all pods", func() bool {
		running := 0
		for _, o := range s.pods.GetStore().List() {
			if o.(*corev1.Pod).Status.Phase == corev1.PodRunning {
				running++
			}
		}
		return running == deployments+1
	})
	s.lostNothing()
}

func (s *steady) lostNothing() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Empty(s.t, strings.Join(s.lost, "\n"))
}
