package statefulset

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// ordinalOf reads the ordinal from the name of a pod of the set.
func ordinalOf(set *appsv1.StatefulSet, pod string) (int, bool) {
	text, ok := strings.CutPrefix(pod, set.Name+"-")
	if !ok {
		return 0, false
	}
	n, err := strconv.Atoi(text)
	return n, err == nil && n >= 0 && strconv.Itoa(n) == text
}

func firstOrdinal(set *appsv1.StatefulSet) int {
	if set.Spec.Ordinals == nil {
		return 0
	}
	return int(set.Spec.Ordinals.Start)
}

func desired(set *appsv1.StatefulSet) int {
	if set.Spec.Replicas == nil {
		return 1
	}
	return int(*set.Spec.Replicas)
}

// burst bounds how many pods one sync makes. Their events bring the next sync.
const burst = 500

// sort puts the pods into their places.
func (s *sync) sort() {
	first := firstOrdinal(s.set)
	s.replicas = map[int]*corev1.Pod{}
	for _, pod := range s.pods {
		n, _ := ordinalOf(s.set, pod.Name)
		if i := n - first; i >= 0 && i < desired(s.set) {
			s.replicas[i] = pod
		} else {
			s.condemned = append(s.condemned, pod)
		}
	}
	slices.SortFunc(s.condemned, func(a, b *corev1.Pod) int {
		m, _ := ordinalOf(s.set, a.Name)
		n, _ := ordinalOf(s.set, b.Name)
		return cmp.Compare(n, m)
	})
}

// places are those of the pods that there are, in their order.
func (s *sync) places() []int { return slices.Sorted(maps.Keys(s.replicas)) }

// ordered reports whether one pod waits for the one before it.
func ordered(set *appsv1.StatefulSet) bool {
	return set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement
}

// act does what is to be done now: first the pods that should be there, from the lowest ordinal, then
// those that should not, from the highest, then the update. An ordered set stops at the first
// pod that is not available, and goes on when it is.
func (s *sync) act(ctx context.Context) error {
	// What it does is in proportion to the pods that there are, not to those that are asked for.
	have := len(s.replicas)
	for i := 0; i < desired(s.set) && len(s.replicas) < have+burst; i++ {
		if wait, err := s.bringUp(ctx, i); err != nil || wait {
			return err
		}
	}
	if err := s.syncClaimOwners(ctx); err != nil {
		return err
	}
	for i, pod := range s.condemned {
		if wait, err := s.condemn(ctx, i, pod); err != nil || wait {
			return err
		}
	}
	return s.roll(ctx)
}

// bringUp sees to one replica and reports whether those after it have to wait.
func (s *sync) bringUp(ctx context.Context, i int) (wait bool, err error) {
	pod := s.replicas[i]
	switch {
	case pod == nil:
		if s.mustWait(podName(s.set, i)) {
			return ordered(s.set), nil
		}
		err := s.create(ctx, i)
		return ordered(s.set) || s.replicas[i] == nil, err // none is made in a namespace that goes
	case controller.PodEnded(pod) && pod.DeletionTimestamp == nil:
		if s.mustWait(pod.Name) {
			return ordered(s.set), nil
		}
		s.tellRecreating(pod)
		// The next is made when this one is gone.
		return ordered(s.set), s.delete(ctx, pod)
	case pod.DeletionTimestamp != nil || controller.PodEnded(pod):
		return ordered(s.set), nil
	}
	if pod.Status.Phase == corev1.PodPending {
		if err := s.createClaims(ctx, pod); err != nil {
			return true, err
		}
	}
	if err := s.mend(ctx, i); err != nil {
		return true, err
	}
	return ordered(s.set) && !s.available(pod), nil
}

// mustWait reports whether a pod is not to be replaced yet, since it and others of its name failed shortly
// before. The set is reconciled again when it may be.
func (s *sync) mustWait(name string) bool {
	wait := s.Failures.Replace(s.key, name)
	if wait > 0 {
		s.EnqueueAfter(s.key, wait)
	}
	return wait > 0
}

func (s *sync) tellRecreating(pod *corev1.Pod) {
	if pod.Status.Phase == corev1.PodFailed {
		s.recorder.Eventf(s.set, corev1.EventTypeWarning, "RecreatingFailedPod",
			"StatefulSet %s/%s is recreating failed Pod %s", s.set.Namespace, s.set.Name, pod.Name)
		return
	}
	s.recorder.Eventf(s.set, corev1.EventTypeNormal, "RecreatingTerminatedPod",
		"StatefulSet %s/%s is recreating terminated Pod %s", s.set.Namespace, s.set.Name, pod.Name)
}

// condemn ends a pod beyond the size of the set and reports whether those below it have to wait.
// In an ordered set one that is not available goes only when it is the lowest that is not.
func (s *sync) condemn(ctx context.Context, i int, pod *corev1.Pod) (wait bool, err error) {
	if pod.DeletionTimestamp != nil {
		return ordered(s.set), nil
	}
	if ordered(s.set) && !s.available(pod) {
		for _, below := range s.condemned[i+1:] {
			if !s.available(below) && below.DeletionTimestamp == nil {
				return true, nil
			}
		}
	}
	return ordered(s.set), s.delete(ctx, pod)
}

// healthy reports whether a pod runs, is ready, and is not about to end.
func healthy(pod *corev1.Pod) bool {
	return pod != nil && pod.Status.Phase == corev1.PodRunning && controller.PodReady(pod) &&
		pod.DeletionTimestamp == nil
}

// available reports whether a pod has been healthy for minReadySeconds; where it will be so by
// itself it brings the set back then.
func (s *sync) available(pod *corev1.Pod) bool {
	if !healthy(pod) {
		return false
	}
	ok, from := controller.PodAvailable(pod, s.set.Spec.MinReadySeconds, s.now)
	if !from.IsZero() {
		s.EnqueueAt(s.key, from)
	}
	return ok
}

func (s *sync) create(ctx context.Context, i int) error {
	pod, revision, err := s.newPod(i)
	if err != nil {
		return err
	}
	if err := s.createClaims(ctx, pod); err != nil {
		return err
	}
	created, err := s.client().CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	switch {
	case err == nil:
		s.Written.Note(s.key, s.statefulSets.pods, created.ResourceVersion)
		s.replicas[i], s.pods = created, append(s.pods, created)
		s.recorder.Eventf(s.set, corev1.EventTypeNormal, "SuccessfulCreate",
			"create Pod %s in StatefulSet %s successful", pod.Name, s.set.Name)
		s.Log.Debug("pod created", "pod", controller.KeyOf(created), "revision", revision)
		return nil
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil
	}
	s.recorder.Eventf(s.set, corev1.EventTypeWarning, "FailedCreate",
		"create Pod %s in StatefulSet %s failed error: %v", pod.Name, s.set.Name, err)
	return err
}

func (s *sync) delete(ctx context.Context, pod *corev1.Pod) error {
	s.Expected.ExpectDeletions(s.key, pod.UID)
	err := s.client().CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name,
		*metav1.NewPreconditionDeleteOptions(string(pod.UID)))
	if err == nil {
		s.recorder.Eventf(s.set, corev1.EventTypeNormal, "SuccessfulDelete",
			"delete Pod %s in StatefulSet %s successful", pod.Name, s.set.Name)
		return nil
	}
	s.Expected.DeletionObserved(s.key, pod.UID)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	s.recorder.Eventf(s.set, corev1.EventTypeWarning, "FailedDelete",
		"delete Pod %s in StatefulSet %s failed error: %v", pod.Name, s.set.Name, err)
	return err
}
