package controllers_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
)

// A walk changes what a workload should be at random moments of its rollouts, ends its controllers and starts others, and
// looks at every state that the pods are in on the way: what a workload promises holds at each.
type rolloutWalk struct {
	*clocked
	random *rand.Rand

	mu     sync.Mutex
	pods   map[string]*corev1.Pod
	events int
	broken string
}

// newRolloutWalk lets the controllers see everything late.
func newRolloutWalk(c *clocked) *rolloutWalk {
	c.faults = &faults{late: 30 * time.Millisecond}
	c.restart()
	return &rolloutWalk{clocked: c, random: newRandom(c), pods: map[string]*corev1.Pod{}}
}

// guard watches the pods and checks the promise at each of their states from now on; it says what is broken, or "".
func (w *rolloutWalk) guard(promise func(pods []*corev1.Pod) string) {
	list, err := w.client.CoreV1().Pods("default").List(w.ctx, metav1.ListOptions{})
	require.NoError(w, err)
	for i := range list.Items {
		w.pods[list.Items[i].Name] = &list.Items[i]
	}
	stream, err := w.client.CoreV1().Pods("default").Watch(w.ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	require.NoError(w, err)
	follow(w.cluster, stream, func(kind watch.EventType, pod *corev1.Pod) { w.observed(kind, pod, promise) })
}

func (w *rolloutWalk) observed(kind watch.EventType, pod *corev1.Pod, promise func([]*corev1.Pod) string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events++
	if kind == watch.Deleted {
		delete(w.pods, pod.Name)
	} else {
		w.pods[pod.Name] = pod
	}
	if w.broken == "" {
		if what := promise(w.all()); what != "" {
			w.broken = fmt.Sprintf("%s, after %s of %s at %s", what, kind, pod.Name, pod.ResourceVersion)
		}
	}
}

// all are the pods that were not told to end.
func (w *rolloutWalk) all() []*corev1.Pod {
	var all []*corev1.Pod
	for _, p := range w.pods {
		if p.DeletionTimestamp == nil && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			all = append(all, p)
		}
	}
	return all
}

func readyOf(pods []*corev1.Pod) int {
	n := 0
	for _, p := range pods {
		if podReady(p) {
			n++
		}
	}
	return n
}

// walk makes so many changes. complete says that the rollout under way has ended.
func (w *rolloutWalk) walk(steps int, change func(image string), complete func() bool) {
	w.Helper()
	defer func() {
		if w.Failed() {
			for _, p := range w.cluster.pods() {
				w.Logf("%s %s on %q, image %s, ready %v, deleted %v", p.Name, p.Status.Phase, p.Spec.NodeName, p.Spec.Containers[0].Image, podReady(&p), p.DeletionTimestamp)
			}
		}
	}()
	for range steps {
		change([]string{"one", "two", "three"}[w.random.IntN(3)])
		if w.random.IntN(3) == 0 {
			w.restart()
		}
		w.mu.Lock()
		enough := w.events + w.random.IntN(25)
		w.mu.Unlock()
		w.reaches("the rollout goes on", func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.events >= enough || w.broken != "" || complete()
		})
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	require.Empty(w, w.broken)
}

func (w *rolloutWalk) whole() {
	w.mu.Lock()
	defer w.mu.Unlock()
	require.Empty(w, w.broken)
}

func TestDeployment_KeepsItsBoundsOnARandomWalk(t *testing.T) {
	t.Parallel()
	const n, surge, unavailable = 6, 2, 1
	w := newRolloutWalk(newClocked(t, 2, "deployment", "replicaset"))
	w.deploy("web", n, func(d *appsv1.Deployment) {
		d.Spec.Strategy.RollingUpdate.MaxSurge, d.Spec.Strategy.RollingUpdate.MaxUnavailable = new(intstr.FromInt32(surge)), new(intstr.FromInt32(unavailable))
	})
	complete := func() bool {
		d := w.deployment("web")
		s := d.Status
		return s.ObservedGeneration == d.Generation && s.UpdatedReplicas == n && s.Replicas == n && s.AvailableReplicas == n
	}
	w.reaches("complete", complete)
	w.guard(func(pods []*corev1.Pod) string {
		switch ready := readyOf(pods); {
		case len(pods) > n+surge:
			return fmt.Sprintf("%d pods are more than %d", len(pods), n+surge)
		case ready < n-unavailable:
			return fmt.Sprintf("%d ready pods are fewer than %d", ready, n-unavailable)
		}
		return ""
	})
	w.walk(15, func(name string) { w.edit("web", image(name)) }, complete)
	w.edit("web", image("last"))
	w.reaches("complete at last", complete)
	w.whole()
	for _, p := range w.cluster.pods() {
		require.Equal(t, p.DeletionTimestamp == nil, p.Spec.Containers[0].Image == "last", p.Name)
	}
}

func TestStatefulSet_KeepsItsBoundsOnARandomWalk(t *testing.T) {
	t.Parallel()
	const n = 4
	w := newRolloutWalk(newSets(t))
	w.ordain("db", n, nil)
	complete := func() bool {
		s := w.statefulSet("db")
		return s.Status.ObservedGeneration == s.Generation && s.Status.ReadyReplicas == n && s.Status.UpdatedReplicas == n &&
			s.Status.CurrentRevision == s.Status.UpdateRevision
	}
	w.reaches("complete", complete)
	w.guard(func(pods []*corev1.Pod) string {
		switch ready := readyOf(pods); {
		case len(pods) > n:
			return fmt.Sprintf("%d pods have %d ordinals", len(pods), n)
		case ready < n-1: // one at a time
			return fmt.Sprintf("%d ready pods are fewer than %d", ready, n-1)
		}
		return ""
	})
	w.walk(12, func(name string) { w.editSet("db", setImage(name)) }, complete)
	w.editSet("db", setImage("last"))
	w.reaches("complete at last", complete)
	w.whole()
	require.Equal(t, []string{"db-0=last", "db-1=last", "db-2=last", "db-3=last"}, w.images())
}

func TestCronJob_NeverRunsTwiceAtOnceOnARandomWalk(t *testing.T) {
	t.Parallel()
	c := newCron(t)
	random := newRandom(t)
	cj := c.everyMinute("tick", func(cj *batchv1.CronJob) {
		cj.Spec.ConcurrencyPolicy = batchv1.ForbidConcurrent
		cj.Spec.SuccessfulJobsHistoryLimit = new(int32(100))
		cj.Spec.JobTemplate.Spec.Template.Annotations = map[string]string{"sim.coxswain.dev/exit-code": "0", "sim.coxswain.dev/run-for": "90s"}
	})
	stream, err := c.client.BatchV1().Jobs("default").Watch(c.ctx, metav1.ListOptions{ResourceVersion: cj.ResourceVersion})
	require.NoError(t, err)
	var mu sync.Mutex
	running, made, most := map[string]bool{}, map[string]bool{}, 0
	follow(c.cluster, stream, func(kind watch.EventType, j *batchv1.Job) {
		mu.Lock()
		defer mu.Unlock()
		made[j.Name] = true
		ended := slices.ContainsFunc(j.Status.Conditions, func(c batchv1.JobCondition) bool {
			return (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue
		})
		delete(running, j.Name)
		if kind != watch.Deleted && !ended {
			running[j.Name] = true
		}
		most = max(most, len(running))
	})
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(made)
	}
	c.nextMinute()
	for i := range 6 {
		before := count()
		c.passing(time.Duration(100+random.IntN(900))*time.Millisecond, fmt.Sprintf("run %d", i), func() bool { return count() > before })
		if random.IntN(2) == 0 {
			c.restart()
		}
	}
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, 1, most)
}

// storm is a walk in which pods are killed and others write as well; only its end is judged.
func (w *rolloutWalk) storm(steps int, moves ...func()) {
	for range steps {
		switch n := w.random.IntN(len(moves) + 3); n {
		case 0:
			w.restart()
		case 1: // a pod is killed
			if pods := w.cluster.pods(); len(pods) > 0 {
				victim := pods[w.random.IntN(len(pods))]
				_ = w.client.CoreV1().Pods("default").Delete(w.ctx, victim.Name, *metav1.NewDeleteOptions(0)) // it may be gone
			}
		case 2: // somebody else writes to a pod
			if pods := w.cluster.pods(); len(pods) > 0 {
				patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"example.com/note":"%d"}}}`, w.random.IntN(1000))
				_, _ = w.client.CoreV1().Pods("default").Patch(w.ctx, pods[w.random.IntN(len(pods))].Name, types.MergePatchType, patch, metav1.PatchOptions{})
			}
		default:
			moves[n-3]()
		}
		w.Step(time.Duration(w.random.IntN(2000)) * time.Millisecond)
	}
}

func TestDeployment_EndsAsItShouldAfterAStorm(t *testing.T) {
	t.Parallel()
	w := newRolloutWalk(newClocked(t, 2, "deployment", "replicaset", "garbagecollector"))
	w.deploy("web", 5, nil)
	w.storm(40,
		func() { w.edit("web", image([]string{"one", "two", "three"}[w.random.IntN(3)])) },
		func() { w.edit("web", scale(int32(w.random.IntN(9)))) },
		func() { w.edit("web", func(d *appsv1.Deployment) { d.Spec.Paused = !d.Spec.Paused }) },
		func() { // a conflicting writer
			for _, rs := range w.replicaSets() {
				patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, w.random.IntN(4))
				_, _ = w.client.AppsV1().ReplicaSets("default").Patch(w.ctx, rs.Name, types.MergePatchType, patch, metav1.PatchOptions{})
			}
		},
	)
	w.edit("web", func(d *appsv1.Deployment) { d.Spec.Paused, d.Spec.Replicas = false, new(int32(4)) })
	w.edit("web", image("last"))
	w.passing(100*time.Millisecond, "four of the last", func() bool {
		d := w.deployment("web")
		s := d.Status
		if s.ObservedGeneration != d.Generation || s.UpdatedReplicas != 4 || s.Replicas != 4 || s.AvailableReplicas != 4 {
			return false
		}
		for _, p := range w.cluster.pods() {
			if p.Spec.Containers[0].Image != "last" {
				return false
			}
		}
		return len(w.cluster.pods()) == 4
	})
	for _, rs := range w.replicaSets() {
		want := int32(0)
		if rs.Spec.Template.Spec.Containers[0].Image == "last" {
			want = 4
		}
		require.Equal(t, want, *rs.Spec.Replicas, rs.Name)
	}
}

func TestStatefulSet_EndsAsItShouldAfterAStorm(t *testing.T) {
	t.Parallel()
	w := newRolloutWalk(newSets(t))
	w.ordain("db", 3, nil)
	w.storm(30,
		func() { w.editSet("db", setImage([]string{"one", "two", "three"}[w.random.IntN(3)])) },
		func() {
			n := int32(w.random.IntN(6))
			w.editSet("db", func(s *appsv1.StatefulSet) { s.Spec.Replicas = &n })
		},
		func() {
			n := int32(w.random.IntN(4))
			w.editSet("db", func(s *appsv1.StatefulSet) {
				s.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{Partition: &n}
			})
		},
	)
	w.editSet("db", func(s *appsv1.StatefulSet) {
		s.Spec.Replicas, s.Spec.UpdateStrategy.RollingUpdate = new(int32(3)), &appsv1.RollingUpdateStatefulSetStrategy{Partition: new(int32(0))}
	})
	w.editSet("db", setImage("last"))
	w.passing(100*time.Millisecond, "three of the last", func() bool {
		return slices.Equal(w.images(), []string{"db-0=last", "db-1=last", "db-2=last"})
	})
	w.awaitSet("db", 3)
}
