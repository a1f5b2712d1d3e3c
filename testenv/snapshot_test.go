package testenv_test

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/testenv"
)

func TestReset_RestoresTheObjectsOfASnapshot(t *testing.T) {
	t.Parallel()
	env, ctx := testenv.StartEnvironment(t, testenv.APIServerOnly()), t.Context()
	client := kubernetes.NewForConfigOrDie(env.Config)
	maps := client.CoreV1().ConfigMaps("default")
	for _, name := range []string{"kept", "changed", "deleted"} {
		_, err := maps.Create(ctx, configMap(name, "k", "before"), metav1.CreateOptions{})
		require.NoError(t, err)
	}
	before, err := maps.List(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	snap, err := env.Snapshot(ctx)
	require.NoError(t, err)

	for range 2 { // a snapshot serves any number of times
		w, err := maps.Watch(ctx, metav1.ListOptions{ResourceVersion: "0", FieldSelector: "metadata.name!=x"})
		require.NoError(t, err)
		_, err = maps.Update(ctx, configMap("changed", "k", "after"), metav1.UpdateOptions{})
		require.NoError(t, err)
		require.NoError(t, maps.Delete(ctx, "deleted", metav1.DeleteOptions{}))
		_, err = maps.Create(ctx, configMap("new"), metav1.CreateOptions{})
		require.NoError(t, err)
		_, err = client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "new"}},
			metav1.CreateOptions{})
		require.NoError(t, err)
		require.NoError(t, env.Reset(ctx, snap))

		after, err := maps.List(ctx, metav1.ListOptions{})
		require.NoError(t, err)
		require.Greater(t, len(after.ResourceVersion)+1, len(before.ResourceVersion))
		require.Equal(t, content(before), content(after))
		_, err = client.CoreV1().Namespaces().Get(ctx, "new", metav1.GetOptions{})
		require.True(t, apierrors.IsNotFound(err), "%v", err)
		state := map[string]string{} // the content of a cache that follows the watch
		for len(state) != len(before.Items) || state["changed"] != "before" || state["deleted"] == "" {
			e := <-w.ResultChan()
			m := e.Object.(*corev1.ConfigMap)
			if state[m.Name] = m.Data["k"] + "!"; e.Type == watch.Deleted {
				delete(state, m.Name)
			} else if m.Data["k"] == "before" {
				state[m.Name] = "before"
			}
		}
		w.Stop()
	}
}

// content returns the ConfigMaps of a list, without their revisions.
func content(list *corev1.ConfigMapList) map[string]corev1.ConfigMap {
	all := map[string]corev1.ConfigMap{}
	for _, m := range list.Items {
		m.ResourceVersion = ""
		all[m.Name] = m
	}
	return all
}

func TestReset_RemovesAndRestoresKinds(t *testing.T) {
	t.Parallel()
	env, ctx := testenv.StartEnvironment(t, testenv.APIServerOnly(), testenv.WithCRDsFrom(testdata, "testdata/crds")),
		t.Context()
	definitions := dynamic.NewForConfigOrDie(env.Config).Resource(schema.GroupVersionResource{
		Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	ferries := dynamic.NewForConfigOrDie(env.Config).Resource(schema.GroupVersionResource{
		Group: "example.com", Version: "v1", Resource: "ferries"})
	snap, err := env.Snapshot(ctx)
	require.NoError(t, err)
	require.NoError(t, definitions.Delete(ctx, "ferries.example.com", metav1.DeleteOptions{}))
	require.EventuallyWithT(t, func(c *collect) {
		_, err := definitions.Get(ctx, "ferries.example.com", metav1.GetOptions{})
		require.True(c, apierrors.IsNotFound(err), "%v", err)
	}, longEnough, tick)
	require.NoError(t, env.Reset(ctx, snap))
	require.EventuallyWithT(t, func(c *collect) {
		_, err := ferries.List(ctx, metav1.ListOptions{})
		require.NoError(c, err)
	}, longEnough, tick)
}

func TestFromSnapshot_ForksShareOnlyTheirPast(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	base, err := testenv.NewEnvironment(testenv.WithNodes(2))
	require.NoError(t, err)
	client := kubernetes.NewForConfigOrDie(base.Config)
	_, err = client.AppsV1().Deployments("default").Create(ctx, deployment("web", 2), metav1.CreateOptions{})
	require.NoError(t, err)
	awaitReady(t, client, "web", 2)
	account, err := base.ServiceAccount(ctx, "default", "operator")
	require.NoError(t, err)
	snap, err := base.Snapshot(ctx)
	require.NoError(t, err)
	require.NoError(t, base.Stop(), "a snapshot outlives its environment")

	for i := range 3 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			fork := testenv.StartEnvironment(t, testenv.FromSnapshot(snap))
			client := kubernetes.NewForConfigOrDie(fork.Config)
			nodes, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
			require.NoError(t, err)
			require.Len(t, nodes.Items, 2)
			awaitReady(t, client, "web", 2)
			_, err = client.CoreV1().ConfigMaps("default").Create(t.Context(), configMap("mine"), metav1.CreateOptions{})
			require.NoError(t, err)
			moved := rest.CopyConfig(account)
			moved.Host = fork.Config.Host
			require.Equal(t, "system:serviceaccount:default:operator", whoAmI(t, moved).Username)
			_, err = client.AppsV1().Deployments("default").Create(t.Context(), deployment("more", 3), metav1.CreateOptions{})
			require.NoError(t, err)
			awaitReady(t, client, "more", 3)
		})
	}
}

// servesAlone waits until the Service kubernetes leads to the environment's own API server alone. With a manual
// clock, a server that has ended stays present until another one removes it.
func servesAlone(t *testing.T, env *testenv.Environment, clock *testenv.Clock) {
	t.Helper()
	_, own, err := net.SplitHostPort(strings.TrimPrefix(env.Config.Host, "https://"))
	require.NoError(t, err)
	endpoints := kubernetes.NewForConfigOrDie(env.Config).CoreV1().Endpoints("default") // it has all servers
	var ports []string
	for range 3 { // renewals of the server's presence
		clock.Step(time.Minute)
		all, err := endpoints.Get(t.Context(), "kubernetes", metav1.GetOptions{})
		require.NoError(t, err)
		ports = nil
		for _, subset := range all.Subsets {
			ports = append(ports, fmt.Sprint(subset.Ports[0].Port))
		}
	}
	require.Equal(t, []string{own}, ports)
}

func TestSnapshot_ExcludesTheServer(t *testing.T) {
	t.Parallel()
	byHand := func(opts ...testenv.Option) (*testenv.Environment, *testenv.Clock) {
		clock := testenv.NewClock(time.Date(2031, 5, 1, 8, 0, 0, 0, time.UTC))
		return testenv.StartEnvironment(t, append(opts, testenv.WithFakeTime(clock))...), clock
	}
	base, clock := byHand(testenv.APIServerOnly())
	servesAlone(t, base, clock)
	past, err := base.Snapshot(t.Context())
	require.NoError(t, err)
	fork, clock := byHand(testenv.FromSnapshot(past))
	servesAlone(t, fork, clock)

	sibling, _ := byHand(testenv.FromSnapshot(past))
	theirs, err := sibling.Snapshot(t.Context())
	require.NoError(t, err)
	require.NoError(t, sibling.Stop())
	require.NoError(t, fork.Reset(t.Context(), theirs))
	servesAlone(t, fork, clock)
}

func TestSnapshot_FailsOnEtcd(t *testing.T) {
	t.Parallel()
	env := testenv.StartEnvironment(t, testenv.APIServerOnly(), testenv.WithEtcd())
	_, err := env.Snapshot(t.Context())
	require.EqualError(t, err, "testenv: Snapshot: the objects are in etcd")
	other := testenv.StartEnvironment(t, testenv.APIServerOnly())
	snap, err := other.Snapshot(t.Context())
	require.NoError(t, err)
	third := testenv.StartEnvironment(t, testenv.APIServerOnly())
	require.EqualError(t, third.Reset(t.Context(), snap), "testenv: Reset: the snapshot is of another environment")
}

// withObjects returns an environment of an API server with n objects.
func withObjects(b *testing.B, n int) *testenv.Environment {
	env := testenv.StartEnvironment(b, testenv.APIServerOnly())
	maps := kubernetes.NewForConfigOrDie(env.Config).CoreV1().ConfigMaps("default")
	for i := range n {
		_, err := maps.Create(b.Context(), configMap(fmt.Sprint("m", i), "k", "v"), metav1.CreateOptions{})
		require.NoError(b, err)
	}
	return env
}

func BenchmarkSnapshot(b *testing.B) {
	env := withObjects(b, 1000)
	for b.Loop() {
		_, err := env.Snapshot(b.Context())
		require.NoError(b, err)
	}
}

// BenchmarkReset deletes 1,000 objects, and restores them.
func BenchmarkReset(b *testing.B) {
	env := testenv.StartEnvironment(b, testenv.APIServerOnly())
	empty, err := env.Snapshot(b.Context())
	require.NoError(b, err)
	maps := kubernetes.NewForConfigOrDie(env.Config).CoreV1().ConfigMaps("default")
	for i := range 1000 {
		_, err := maps.Create(b.Context(), configMap(fmt.Sprint("m", i), "k", "v"), metav1.CreateOptions{})
		require.NoError(b, err)
	}
	full, err := env.Snapshot(b.Context())
	require.NoError(b, err)
	for b.Loop() {
		require.NoError(b, env.Reset(b.Context(), empty))
		require.NoError(b, env.Reset(b.Context(), full))
	}
}

// BenchmarkFork starts an API server with 1,000 objects, and stops it.
func BenchmarkFork(b *testing.B) {
	snap, err := withObjects(b, 1000).Snapshot(b.Context())
	require.NoError(b, err)
	for b.Loop() {
		fork, err := testenv.NewEnvironment(testenv.FromSnapshot(snap))
		require.NoError(b, err)
		b.StopTimer()
		require.NoError(b, fork.Stop())
		b.StartTimer()
	}
}
