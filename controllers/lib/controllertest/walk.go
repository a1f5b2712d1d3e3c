package controllertest

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// Walk changes the spec of a workload at random moments of its rollouts, restarts its controllers, and checks
// an invariant of the workload in every state of its pods on the way.
type Walk struct {
	*Clocked
	Random *rand.Rand

	mu     sync.Mutex
	pods   map[string]*corev1.Pod // the last seen state, by name
	events int
	broken string // the first violation of the invariant
}

// NewWalk restarts the controllers with late caches.
func NewWalk(c *Clocked) *Walk {
	c.Faults.Late = 30 * time.Millisecond
	c.Restart()
	return &Walk{Clocked: c, Random: NewRandom(c), pods: map[string]*corev1.Pod{}}
}

// Guard watches the pods and checks the invariant in each of their states from now on. It gets the pods that
// are neither being deleted nor have ended, and returns a description of the violation, or "".
func (w *Walk) Guard(invariant func(pods []*corev1.Pod) string) {
	list, err := w.Client.CoreV1().Pods("default").List(w.Context(), metav1.ListOptions{})
	require.NoError(w, err)
	for i := range list.Items {
		w.pods[list.Items[i].Name] = &list.Items[i]
	}
	stream, err := w.Client.CoreV1().Pods("default").Watch(w.Context(),
		metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	require.NoError(w, err)
	Follow(w.Cluster, stream, func(kind watch.EventType, pod *corev1.Pod) { w.observed(kind, pod, invariant) })
}

func (w *Walk) observed(kind watch.EventType, pod *corev1.Pod, invariant func([]*corev1.Pod) string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events++
	if kind == watch.Deleted {
		delete(w.pods, pod.Name)
	} else {
		w.pods[pod.Name] = pod
	}
	if w.broken == "" {
		if violation := invariant(w.all()); violation != "" {
			w.broken = fmt.Sprintf("%s, after %s of %s at %s", violation, kind, pod.Name, pod.ResourceVersion)
		}
	}
}

// all returns the pods that are neither being deleted nor have ended.
func (w *Walk) all() []*corev1.Pod {
	var all []*corev1.Pod
	for _, p := range w.pods {
		if p.DeletionTimestamp == nil && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			all = append(all, p)
		}
	}
	return all
}

// Walk makes the given number of changes of the image, and waits for some progress after each. complete reports
// that the present rollout has ended.
func (w *Walk) Walk(steps int, change func(image string), complete func() bool) {
	w.Helper()
	defer func() {
		if w.Failed() {
			for _, p := range w.Pods() {
				w.Logf("%s %s on %q, image %s, ready %v, deleted %v", p.Name, p.Status.Phase, p.Spec.NodeName,
					p.Spec.Containers[0].Image, PodReady(&p), p.DeletionTimestamp)
			}
		}
	}()
	for range steps {
		change([]string{"one", "two", "three"}[w.Random.IntN(3)])
		if w.Random.IntN(3) == 0 {
			w.Restart()
		}
		w.mu.Lock()
		enough := w.events + w.Random.IntN(25)
		w.mu.Unlock()
		w.Reaches("the rollout goes on", func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.events >= enough || w.broken != "" || complete()
		})
	}
	w.RequireKept()
}

// RequireKept fails the test if the invariant of Guard was violated.
func (w *Walk) RequireKept() {
	w.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	require.Empty(w, w.broken)
}

// Storm is a walk with additional moves, in which pods are killed and another client writes, too. Only its end
// is checked.
func (w *Walk) Storm(steps int, moves ...func()) {
	for range steps {
		switch n := w.Random.IntN(len(moves) + 3); n {
		case 0:
			w.Restart()
		case 1: // a pod is killed
			if pods := w.Pods(); len(pods) > 0 {
				victim := pods[w.Random.IntN(len(pods))]
				// it may have been deleted
				_ = w.Client.CoreV1().Pods("default").Delete(w.Context(), victim.Name, *metav1.NewDeleteOptions(0))
			}
		case 2: // another client writes to a pod
			if pods := w.Pods(); len(pods) > 0 {
				patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"example.com/note":"%d"}}}`, w.Random.IntN(1000))
				_, _ = w.Client.CoreV1().Pods("default").Patch(w.Context(), pods[w.Random.IntN(len(pods))].Name,
					types.MergePatchType, patch, metav1.PatchOptions{})
			}
		default:
			moves[n-3]()
		}
		w.Step(time.Duration(w.Random.IntN(2000)) * time.Millisecond)
	}
}
