package node_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/coxswain-dev/coxswain/node"
	"github.com/coxswain-dev/coxswain/testenv"
)

// startNodes runs an agent on an otherwise empty control plane; stop waits until the agent has ended.
func startNodes(t testing.TB, config *rest.Config, o node.Options) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- node.Run(ctx, config, o) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-done)
	})
	t.Cleanup(stop)
	return stop
}

func pods(client kubernetes.Interface) cache.ListerWatcher {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return client.CoreV1().Pods("default").List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return client.CoreV1().Pods("default").Watch(ctx, o)
		},
	}
}

func createBound(ctx context.Context, t testing.TB, client kubernetes.Interface, name, node string) {
	t.Helper()
	_, err := client.CoreV1().Pods("default").Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "nginx"}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
}

func isReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// awaitReady returns the pods once n of them are ready.
func awaitReady(ctx context.Context, t testing.TB, client kubernetes.Interface, n int) map[string]*corev1.Pod {
	t.Helper()
	seen := map[string]*corev1.Pod{}
	_, err := watchtools.UntilWithSync(ctx, pods(client), &corev1.Pod{}, nil, func(e watch.Event) (bool, error) {
		if pod := e.Object.(*corev1.Pod); isReady(pod) {
			seen[pod.Name] = pod
		}
		return len(seen) == n, nil
	})
	require.NoError(t, err)
	return seen
}

func TestRun_StartsAndEndsPodsWithUniqueAddresses(t *testing.T) {
	t.Parallel()
	config := testenv.Start(t, testenv.APIServerOnly())
	client := kubernetes.NewForConfigOrDie(config)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stop := startNodes(t, config, node.Options{Count: 2})
	for i := range 40 {
		createBound(ctx, t, client, fmt.Sprintf("p%d", i), fmt.Sprintf("node-%d", i%2))
	}
	ips := map[string]bool{}
	for name, pod := range awaitReady(ctx, t, client, 40) {
		require.False(t, ips[pod.Status.PodIP], "%s has the address of another", name)
		ips[pod.Status.PodIP] = true
		require.Equal(t, corev1.PodRunning, pod.Status.Phase)
		require.Equal(t, corev1.PodReadyToStartContainers, pod.Status.Conditions[0].Type)
	}

	require.Eventually(t, func() bool {
		_, err := client.CoordinationV1().Leases("kube-node-lease").Get(ctx, "node-1", metav1.GetOptions{})
		return err == nil
	}, time.Minute, 10*time.Millisecond, "its heart beats")
	n, err := client.CoreV1().Nodes().Get(ctx, "node-1", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "10.244.4.0/22", n.Spec.PodCIDR)
	require.EqualValues(t, 1000, n.Status.Allocatable.Pods().Value())

	before, err := client.CoreV1().Pods("default").Get(ctx, "p0", metav1.GetOptions{})
	require.NoError(t, err)
	stop()
	startNodes(t, config, node.Options{Count: 2})
	require.NoError(t, client.CoreV1().Pods("default").Delete(ctx, "p1", metav1.DeleteOptions{}))
	_, err = watchtools.UntilWithSync(ctx, pods(client), &corev1.Pod{}, func(store cache.Store) (bool, error) {
		_, there, err := store.GetByKey("default/p1")
		return !there, err
	}, func(e watch.Event) (bool, error) {
		return e.Type == watch.Deleted && e.Object.(*corev1.Pod).Name == "p1", nil
	})
	require.NoError(t, err)
	after, err := client.CoreV1().Pods("default").Get(ctx, "p0", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, before, after, "the new agent took it up as it was")

	require.NoError(t, client.CoreV1().Nodes().Delete(ctx, "node-1", metav1.DeleteOptions{}))
	createBound(ctx, t, client, "later", "node-0")
	awaitReady(ctx, t, client, 40)
	_, err = client.CoreV1().Nodes().Get(ctx, "node-1", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "a deleted Node stays away")
}

// When a node's heartbeats are late, the node controller marks its pods as not ready. Only the node marks them as
// ready again.
func TestRun_RestoresOverwrittenStatus(t *testing.T) {
	t.Parallel()
	config := testenv.Start(t, testenv.APIServerOnly())
	client := kubernetes.NewForConfigOrDie(config)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	startNodes(t, config, node.Options{Count: 1})
	createBound(ctx, t, client, "p", "node-0")
	before := awaitReady(ctx, t, client, 1)["p"]

	lost := before.DeepCopy()
	for i := range lost.Status.Conditions {
		if c := &lost.Status.Conditions[i]; c.Type == corev1.PodReady {
			c.Status, c.LastTransitionTime = corev1.ConditionFalse, metav1.Now()
		}
	}
	lost.Status.Conditions = append(lost.Status.Conditions, corev1.PodCondition{Type: "example.com/mine",
		Status: corev1.ConditionTrue})
	_, err := client.CoreV1().Pods("default").UpdateStatus(ctx, lost, metav1.UpdateOptions{})
	require.NoError(t, err)
	after := awaitReady(ctx, t, client, 1)["p"]
	require.Equal(t, append(before.Status.Conditions, lost.Status.Conditions[len(before.Status.Conditions)]),
		after.Status.Conditions,
		"what is others' stays")
}

// BenchmarkRun_1000Pods measures a thousand bound pods from the first create to the last Ready, including the API
// server.
func BenchmarkRun_1000Pods(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		config := testenv.Start(b, testenv.WithNodes(3), testenv.WithControllers(), testenv.WithoutScheduler())
		client := kubernetes.NewForConfigOrDie(config)
		b.StartTimer()
		var creators sync.WaitGroup
		for w := range 8 {
			creators.Go(func() {
				for i := w; i < 1000; i += 8 {
					createBound(b.Context(), b, client, fmt.Sprintf("p%d", i), fmt.Sprintf("node-%d", i%3))
				}
			})
		}
		creators.Wait()
		awaitReady(b.Context(), b, client, 1000)
	}
}
