package scheduler_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/coxswain-dev/coxswain/scheduler"
	"github.com/coxswain-dev/coxswain/testenv"
)

func createNodes(ctx context.Context, t testing.TB, client kubernetes.Interface, n int) {
	t.Helper()
	for i := range n {
		room := corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("32"), corev1.ResourceMemory: resource.MustParse("128Gi"),
			corev1.ResourcePods: resource.MustParse("1000"),
		}
		node, err := client.CoreV1().Nodes().Create(ctx,
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i)}}, metav1.CreateOptions{})
		require.NoError(t, err)
		node.Status.Capacity, node.Status.Allocatable = room, room
		_, err = client.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{})
		require.NoError(t, err)
	}
}

func createPods(ctx context.Context, t testing.TB, client kubernetes.Interface, n int, cpu string) {
	t.Helper()
	var creators sync.WaitGroup
	failed := make(chan error, n)
	for w := range 8 {
		creators.Go(func() {
			for i := w; i < n; i += 8 {
				if _, err := client.CoreV1().Pods("default").Create(ctx, smallPod(fmt.Sprintf("p%d", i), cpu),
					metav1.CreateOptions{}); err != nil {
					failed <- err
				}
			}
		})
	}
	creators.Wait()
	close(failed)
	require.NoError(t, <-failed)
}

func smallPod(name, cpu string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "nginx",
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)},
			}}}},
	}
}

// awaitBound returns the pods by node once n of them are bound.
func awaitBound(ctx context.Context, t testing.TB, client kubernetes.Interface, n int) map[string]int {
	t.Helper()
	node := map[string]string{}
	_, err := watchtools.UntilWithSync(ctx, podsOf(client), &corev1.Pod{}, nil, func(e watch.Event) (bool, error) {
		pod := e.Object.(*corev1.Pod)
		if before := node[pod.Name]; before != "" && before != pod.Spec.NodeName {
			return false, fmt.Errorf("pod %s moved from %s to %q", pod.Name, before, pod.Spec.NodeName)
		}
		if pod.Spec.NodeName != "" {
			node[pod.Name] = pod.Spec.NodeName
		}
		return len(node) == n, nil
	})
	require.NoError(t, err)
	on := map[string]int{}
	for _, name := range node {
		on[name]++
	}
	return on
}

func podsOf(client kubernetes.Interface) cache.ListerWatcher {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return client.CoreV1().Pods("default").List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return client.CoreV1().Pods("default").Watch(ctx, o)
		},
	}
}

func TestRun_SchedulesABurstEvenly(t *testing.T) {
	t.Parallel()
	client := kubernetes.NewForConfigOrDie(testenv.Start(t, testenv.WithNodes(0), testenv.WithControllers()))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	createNodes(ctx, t, client, 4)
	createPods(ctx, t, client, 200, "100m")
	for node, pods := range awaitBound(ctx, t, client, 200) {
		require.InDelta(t, 50, pods, 12, node)
	}
}

func TestRun_SeveralSchedulersBindEveryPodOnce(t *testing.T) {
	t.Parallel()
	config := testenv.Start(t, testenv.WithNodes(0), testenv.WithControllers(), testenv.WithoutScheduler())
	client := kubernetes.NewForConfigOrDie(config)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := client.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system"}}, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		require.NoError(t, err)
	}
	running, stop := context.WithCancel(ctx)
	var schedulers sync.WaitGroup
	for i := range 2 {
		schedulers.Go(func() {
			if err := scheduler.Run(running, config,
				scheduler.Options{LeaderElect: true, Identity: fmt.Sprint("s", i)}); err != nil {
				t.Error(err)
			}
		})
	}
	defer schedulers.Wait()
	defer stop()
	createNodes(ctx, t, client, 2)
	createPods(ctx, t, client, 50, "1")
	require.Equal(t, map[string]int{"n0": 25, "n1": 25}, awaitBound(ctx, t, client, 50))
	lease, err := client.CoordinationV1().Leases("kube-system").Get(ctx, "kube-scheduler", metav1.GetOptions{})
	require.NoError(t, err)
	require.Contains(t, []string{"s0", "s1"}, *lease.Spec.HolderIdentity)
}

// Pods are scheduled one after the other. A pod that would take seconds to compare with all others is not
// scheduled, and its author gets the reason.
func TestRun_RejectsAPodWithTooManyConstraints(t *testing.T) {
	t.Parallel()
	client := kubernetes.NewForConfigOrDie(testenv.Start(t, testenv.WithNodes(0), testenv.WithControllers()))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	createNodes(ctx, t, client, 1)
	picky := smallPod("picky", "1")
	picky.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: slices.Repeat([]corev1.PodAffinityTerm{{TopologyKey: "zone",
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "other"}}}}, 101)}}
	_, err := client.CoreV1().Pods("default").Create(ctx, picky, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = watchtools.UntilWithSync(ctx, podsOf(client), &corev1.Pod{}, nil, func(e watch.Event) (bool, error) {
		for _, c := range e.Object.(*corev1.Pod).Status.Conditions {
			if c.Type == corev1.PodScheduled {
				require.Equal(t, "0/1 nodes are available: the pod's affinity, spread constraints, tolerations and ports "+
					"weigh 10120; at most 10000 are considered.", c.Message, "101 terms, and the usual two tolerations")
				return c.Status == corev1.ConditionFalse && c.Reason == "Unschedulable", nil
			}
		}
		return false, nil
	})
	require.NoError(t, err)
	require.NoError(t, client.CoreV1().Pods("default").Delete(ctx, "picky", metav1.DeleteOptions{}))
	createPods(ctx, t, client, 1, "1")
	awaitBound(ctx, t, client, 1)
}

func TestRun_ReportsWhyAPodWaits(t *testing.T) {
	t.Parallel()
	client := kubernetes.NewForConfigOrDie(testenv.Start(t, testenv.WithNodes(0), testenv.WithControllers()))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	createNodes(ctx, t, client, 1)
	_, err := client.CoreV1().Pods("default").Create(ctx, smallPod("big", "33"), metav1.CreateOptions{})
	require.NoError(t, err)
	const message = "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 " +
		"Preemption is not helpful for scheduling."
	_, err = watchtools.UntilWithSync(ctx, podsOf(client), &corev1.Pod{}, nil, func(e watch.Event) (bool, error) {
		for _, c := range e.Object.(*corev1.Pod).Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Message == message {
				return c.Status == corev1.ConditionFalse && c.Reason == "Unschedulable", nil
			}
		}
		return false, nil
	})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		events, err := client.CoreV1().Events("default").List(ctx, metav1.ListOptions{})
		for _, e := range events.Items {
			if e.Reason == "FailedScheduling" && e.Message == message && e.InvolvedObject.Name == "big" {
				return err == nil
			}
		}
		return false
	}, time.Minute, 10*time.Millisecond)
}
