package controllers_test

import (
	"context"
	"log/slog"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
)

var quick = controllers.LeaderElection{
	LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 20 * time.Millisecond,
}

// candidate is a process that takes part in the leader election.
type candidate struct {
	leads chan struct{}
	stop  context.CancelFunc
	ended chan error
}

func stand(t *testing.T, config *rest.Config, identity string, election controllers.LeaderElection) *candidate {
	ctx, stop := context.WithCancel(context.Background())
	c := &candidate{leads: make(chan struct{}), stop: stop, ended: make(chan error, 1)}
	go func() {
		c.ended <- controllers.Run(ctx, config, controllers.Options{
			LeaderElect: true, LeaderElection: election, Identity: identity, Ready: func() { close(c.leads) },
			Log: slog.New(slog.DiscardHandler),
		})
	}()
	t.Cleanup(stop)
	return c
}

func (c *candidate) awaitLeads(t *testing.T) {
	t.Helper()
	select {
	case <-c.leads:
	case err := <-c.ended:
		t.Fatalf("ended before it led: %v", err)
	}
}

func holder(t *testing.T, client kubernetes.Interface) string {
	lease, err := client.CoordinationV1().Leases("kube-system").Get(t.Context(), "kube-controller-manager",
		metav1.GetOptions{})
	require.NoError(t, err)
	return *lease.Spec.HolderIdentity
}

func TestRun_ReleasesTheLeaseWhenStopped(t *testing.T) {
	t.Parallel()
	config := controllertest.NewBare(t).Config
	client := kubernetes.NewForConfigOrDie(config)
	first := stand(t, config, "first", quick)
	first.awaitLeads(t)
	require.Equal(t, "first", holder(t, client))
	second := stand(t, config, "second", quick)
	first.stop()
	require.NoError(t, <-first.ended)
	require.NotEqual(t, "first", holder(t, client), "released, not left to expire")
	second.awaitLeads(t)
	require.Equal(t, "second", holder(t, client))
	second.stop()
	require.NoError(t, <-second.ended)
	require.Empty(t, holder(t, client))
}

func TestRun_StopsActingWhenTheLeaseCannotBeRenewed(t *testing.T) {
	t.Parallel()
	c := controllertest.NewBare(t)
	var away atomic.Bool
	c.Faults.RefuseWhile(away.Load, http.MethodPut, "leases")
	only := stand(t, c.Config, "only", quick)
	only.awaitLeads(t)
	away.Store(true)
	require.ErrorIs(t, <-only.ended, controllers.ErrLeadershipLost)
}

func TestRun_StandbyStopsAtOnce(t *testing.T) {
	t.Parallel()
	config := controllertest.NewBare(t).Config
	first := stand(t, config, "first", quick)
	first.awaitLeads(t)
	second := stand(t, config, "second", quick)
	second.stop()
	require.NoError(t, <-second.ended)
	require.Equal(t, "first", holder(t, kubernetes.NewForConfigOrDie(config)))
	first.stop()
	require.NoError(t, <-first.ended)
}

func TestRun_ContinuesTheWorkOfAStoppedLeader(t *testing.T) {
	t.Parallel()
	c := controllertest.NewBare(t)
	c.CreateNode("node", nil)
	c.StartNode(controllertest.Always)
	o := controllers.Options{Controllers: []string{"replicaset"}}
	stop := c.StartControllers(o)
	// It is stopped while no create is in flight: the server might execute it after the next leader has listed
	// pods.
	var asked atomic.Int64
	c.Faults.RefuseWhile(func() bool { return asked.Add(1) > 50 }, http.MethodPost, "pods")
	c.Replicate("web", 200, nil)
	c.Eventually("in the middle", func() bool { return len(c.Pods()) == 50 })
	stop()
	c.Faults.RefuseWhile(func() bool { return false }, http.MethodPost, "pods")
	c.StartControllers(o)
	c.AwaitReplicas("web", 200)
	require.Equal(t, 200, c.CountPods(watch.Added), "not one pod too many")
}

func TestRun_StartsOnlyTheSelectedControllers(t *testing.T) {
	t.Parallel()
	c := controllertest.NewBare(t)
	c.StartControllers(controllers.Options{Controllers: []string{"*", "-replicaset", "-namespace-controller"}})
	c.Deploy("web", 2, nil)
	c.Eventually("replica set", func() bool { return len(c.ReplicaSets()) == 1 })
	c.AwaitCollected("default")
	require.Empty(t, c.Pods())
	c.AwaitMetric(1, "running_managed_controllers", "name", "deployment", "manager", "kube-controller-manager")
	c.AwaitMetric(0, "running_managed_controllers", "name", "replicaset")
	err := controllers.Run(t.Context(), c.Config, controllers.Options{Controllers: []string{"typo"}})
	require.ErrorContains(t, err, `"typo" is not in the list of known controllers`)
}

func TestMetrics_HaveKubernetesNames(t *testing.T) {
	t.Parallel()
	c := controllertest.New(t, nil)
	c.Replicate("web", 1, nil)
	c.Eventually("pod", func() bool { return len(c.Pods()) == 1 })
	families, err := controllers.Metrics().Gather()
	require.NoError(t, err)
	names := map[string]bool{}
	for _, f := range families {
		names[f.GetName()] = true
	}
	for _, name := range []string{
		"workqueue_depth", "workqueue_adds_total", "workqueue_retries_total", "workqueue_queue_duration_seconds",
		"workqueue_work_duration_seconds", "workqueue_unfinished_work_seconds",
		"workqueue_longest_running_processor_seconds",
	} {
		require.True(t, names[name], name)
	}
}

func ExampleRun() {
	config := &rest.Config{Host: "https://127.0.0.1:6443"}
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // a process does this on SIGTERM
	err := controllers.Run(ctx, config, controllers.Options{
		Controllers:    []string{"*", "-garbage-collector-controller"},
		LeaderElect:    true,
		LeaderElection: controllers.LeaderElection{Namespace: corev1.NamespaceDefault},
	})
	if err != nil {
		panic(err)
	}
	// Output:
}
