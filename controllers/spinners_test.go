package controllers_test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
	"github.com/coxswain-dev/coxswain/node"
	"github.com/coxswain-dev/coxswain/testenv"
)

// meter counts the activity of the controllers: requests by verb and resource, log lines, and reads of the
// clock. Each reconciliation reads the clock at least once.
type meter struct {
	*clocktesting.FakeClock
	slog.Handler
	next     http.RoundTripper
	mu       sync.Mutex
	requests map[string]int
	lines    int
	looks    atomic.Int64
}

func (m *meter) WrappedRoundTripper() http.RoundTripper { return m.next }

// RoundTrip implements http.RoundTripper.
func (m *meter) RoundTrip(r *http.Request) (*http.Response, error) {
	request := r.Method + " discovery"
	if path := strings.Trim(r.URL.Path, "/"); strings.Count(path, "/") > 2 || strings.HasPrefix(path, "api/v1/") {
		request = r.Method + " " + controllertest.Plural(r.URL.Path)
	}
	m.mu.Lock()
	m.requests[request]++
	m.mu.Unlock()
	return m.next.RoundTrip(r)
}

// Now implements clock.PassiveClock.
func (m *meter) Now() time.Time {
	m.looks.Add(1)
	return m.FakeClock.Now()
}

// Enabled, WithAttrs and Handle implement slog.Handler.
func (m *meter) Enabled(context.Context, slog.Level) bool { return true }

func (m *meter) WithAttrs([]slog.Attr) slog.Handler { return m }

func (m *meter) Handle(_ context.Context, r slog.Record) error {
	if r.Level >= slog.LevelInfo {
		m.mu.Lock()
		m.lines++
		m.mu.Unlock()
	}
	return nil
}

// spent is the activity up to a moment.
type spent struct {
	requests map[string]int
	lines    int
	looks    int64
}

func (m *meter) spent() spent {
	m.mu.Lock()
	defer m.mu.Unlock()
	return spent{maps.Clone(m.requests), m.lines, m.looks.Load()}
}

func (s spent) since(before spent) spent {
	for request, n := range before.requests {
		if s.requests[request] -= n; s.requests[request] == 0 {
			delete(s.requests, request)
		}
	}
	return spent{s.requests, s.lines - before.lines, s.looks - before.looks}
}

func (s spent) total() (n int) {
	for _, count := range s.requests {
		n += count
	}
	return n
}

// newMetered starts a control plane with the given number of nodes and meters the named controllers from their
// start.
func newMetered(t *testing.T, nodes int, names ...string) (*controllertest.Clocked, *meter) {
	config := testenv.Start(t, testenv.OrExternal(), testenv.WithControllers(), testenv.WithNodes(0))
	c := controllertest.ClockedAt(t, config)
	if nodes > 0 {
		c.StartNodes(node.Options{Count: nodes})
		c.AwaitReadyNodes(nodes)
	}
	m := &meter{FakeClock: c.FakeClock, requests: map[string]int{}}
	c.Config = rest.CopyConfig(c.Config)
	c.Config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		m.next = next
		return m
	})
	ready := make(chan struct{})
	c.Background(func(ctx context.Context) {
		o := controllers.Options{Controllers: names, Clock: m, Log: slog.New(m), Ready: func() { close(ready) }}
		if err := controllers.Run(ctx, c.Config, o); err != nil {
			c.Errorf("Run: %v", err)
		}
	})
	<-ready
	return c, m
}

// tenSeconds advances the clock by ten seconds in small steps, waits after each until the activity stops or
// does not seem to, and returns the activity.
func tenSeconds(c *controllertest.Clocked, m *meter) spent {
	before := m.spent()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for range 100 {
		c.Step(100 * time.Millisecond)
		for last, quiet, looks := m.spent(), 0, 0; quiet < 2 && looks < 10; looks++ {
			<-tick.C
			now := m.spent()
			if quiet++; now.total() != last.total() || now.looks != last.looks {
				quiet = 0
			}
			last = now
		}
	}
	return m.spent().since(before)
}

// refused returns a template of pods that the node rejects.
func refused(labels map[string]string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
		NodeName: "node-0", NodeSelector: map[string]string{"no": "node"},
		Containers: []corev1.Container{{Name: "c", Image: "i"}},
	}}
}

// spinners are situations that made a controller write, read, log or compute without end.
var spinners = map[string]struct {
	nodes       int
	controllers []string
	make        func(c *controllertest.Clocked)
	// writes, looks and lines are the limits for ten seconds; lines is 20 by default.
	writes, looks, lines int
}{
	"a CronJob that never comes due": {controllers: []string{"cronjob"}, writes: 2, looks: 20, make: func(c *controllertest.Clocked) {
		for i, schedule := range []string{"0 0 31 2 *", "0 0 30 2 *", "@every 1000000h"} {
			_, err := c.Client.BatchV1().CronJobs("default").Create(c.Context(), &batchv1.CronJob{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("never-", i)},
				Spec: batchv1.CronJobSpec{Schedule: schedule,
					JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{
						Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever,
							Containers: []corev1.Container{{Name: "c", Image: "i"}}}}}}},
			}, metav1.CreateOptions{})
			require.NoError(c, err)
		}
	}},
	"a ReplicaSet whose pods the node refuses": {nodes: 1, controllers: []string{"replicaset"}, writes: 120,
		make: func(c *controllertest.Clocked) {
			c.Replicate("refused", 3, func(rs *appsv1.ReplicaSet) {
				rs.Spec.Template = refused(rs.Spec.Template.Labels)
			})
		}},
	"a StatefulSet whose pods the node refuses": {nodes: 1, controllers: []string{"statefulset"}, writes: 150,
		make: func(c *controllertest.Clocked) {
			labels := map[string]string{"app": "refused"}
			_, err := c.Client.AppsV1().StatefulSets("default").Create(c.Context(), &appsv1.StatefulSet{
				ObjectMeta: metav1.ObjectMeta{Name: "refused"},
				Spec: appsv1.StatefulSetSpec{Replicas: new(int32(3)), PodManagementPolicy: appsv1.ParallelPodManagement,
					Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: refused(labels)},
			}, metav1.CreateOptions{})
			require.NoError(c, err)
		}},
	"a Job of many indexes whose pods the node refuses": {nodes: 1, controllers: []string{"job"}, writes: 60,
		make: func(c *controllertest.Clocked) {
			template := refused(nil)
			template.Spec.RestartPolicy = corev1.RestartPolicyNever
			_, err := c.Client.BatchV1().Jobs("default").Create(c.Context(), &batchv1.Job{
				ObjectMeta: metav1.ObjectMeta{Name: "refused"},
				Spec: batchv1.JobSpec{Completions: new(int32(10_000)), Parallelism: new(int32(2)),
					CompletionMode:       new(batchv1.IndexedCompletion),
					BackoffLimitPerIndex: new(int32(1000)), Template: template},
			}, metav1.CreateOptions{})
			require.NoError(c, err)
		}},
	"a ReplicaSet whose pods are evicted for a taint": {nodes: 1, controllers: []string{"replicaset", "taint-eviction"},
		writes: 150, make: func(c *controllertest.Clocked) {
			controllertest.Edit(c.Cluster, c.Client.CoreV1().Nodes(), "node-0", func(n *corev1.Node) {
				n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "k", Effect: corev1.TaintEffectNoExecute})
			})
			c.Replicate("tainted", 3, func(rs *appsv1.ReplicaSet) { rs.Spec.Template.Spec.NodeName = "node-0" })
		}},
	"a StatefulSet whose pods are evicted for a taint": {nodes: 1,
		controllers: []string{"statefulset", "taint-eviction"}, writes: 120, make: func(c *controllertest.Clocked) {
			controllertest.Edit(c.Cluster, c.Client.CoreV1().Nodes(), "node-0", func(n *corev1.Node) {
				n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "k", Effect: corev1.TaintEffectNoExecute})
			})
			labels := map[string]string{"app": "tainted"}
			template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{NodeName: "node-0", Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
			_, err := c.Client.AppsV1().StatefulSets("default").Create(c.Context(), &appsv1.StatefulSet{
				ObjectMeta: metav1.ObjectMeta{Name: "tainted"},
				Spec: appsv1.StatefulSetSpec{Replicas: new(int32(3)), PodManagementPolicy: appsv1.ParallelPodManagement,
					Template: template,
					Selector: &metav1.LabelSelector{MatchLabels: labels}},
			}, metav1.CreateOptions{})
			require.NoError(c, err)
		}},
	// Each reconciliation writes an Event, as in Kubernetes. There are about twelve for each budget, at growing
	// intervals.
	"budgets of pods whose owners have an unknown kind": {controllers: []string{"disruption"}, writes: 400, lines: 250,
		make: func(c *controllertest.Clocked) {
			labels := map[string]string{"app": "widget"}
			_, err := c.Client.CoreV1().Pods("default").Create(c.Context(), &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: labels,
					OwnerReferences: []metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "Widget", Name: "w",
						UID: "w", Controller: new(true)}}},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
			}, metav1.CreateOptions{})
			require.NoError(c, err)
			for i := range 30 {
				_, err := c.Client.PolicyV1().PodDisruptionBudgets("default").Create(c.Context(),
					&policyv1.PodDisruptionBudget{
						ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("b-", i)},
						Spec: policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromInt32(1)),
							Selector: &metav1.LabelSelector{MatchLabels: labels}},
					}, metav1.CreateOptions{})
				require.NoError(c, err)
			}
		}},
	"objects whose owners have an unknown kind": {controllers: []string{"garbagecollector"}, writes: 0,
		make: func(c *controllertest.Clocked) {
			for i := range 300 {
				c.CreateMap("default", fmt.Sprint("o-", i), metav1.OwnerReference{APIVersion: "example.com/v1",
					Kind: "Widget",
					Name: "w", UID: "w"})
			}
		}},
}

// TestSpinners_BecomeIdle runs each situation for ten seconds of the clock.
func TestSpinners_BecomeIdle(t *testing.T) {
	for name, s := range spinners {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, m := newMetered(t, s.nodes, s.controllers...)
			s.make(c)
			cost := tenSeconds(c, m)
			writes := 0
			for request, n := range cost.requests {
				if !strings.HasPrefix(request, "GET ") {
					writes += n
				}
			}
			t.Logf("cost: %+v", cost)
			require.LessOrEqual(t, writes, s.writes, "%v", cost)
			require.LessOrEqual(t, cost.lines, cmp.Or(s.lines, 20), "lines logged")
			require.LessOrEqual(t, cost.total()-writes, 200, "reads: %v", cost)
			if s.looks > 0 {
				require.LessOrEqual(t, cost.looks, int64(s.looks), "looks at the clock")
			}
		})
	}
}
