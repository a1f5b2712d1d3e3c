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

// ordinalOf parses the ordinal in the name of a pod. It returns false if the name is not that of a pod of the set.
func ordinalOf(set *appsv1.StatefulSet, pod string) (int, bool) {
	text, ok := strings.CutPrefix(pod, set.Name+"-")
	if !ok {
		return 0, false
	}
	n, err := strconv.Atoi(text)
	return n, err == nil && n >= 0 && strconv.Itoa(n) == text
}

// firstOrdinal returns the ordinal of the first replica.
func firstOrdinal(set *appsv1.StatefulSet) int {
	if set.Spec.Ordinals == nil {
		return 0
	}
	return int(set.Spec.Ordinals.Start)
}

// desired returns the number of replicas of the spec, 1 by default.
func desired(set *appsv1.StatefulSet) int {
	if set.Spec.Replicas == nil {
		return 1
	}
	return int(*set.Spec.Replicas)
}

// burst limits the number of pods that one sync creates. Their events start the next sync.
const burst = 500

// assignOrdinals fills replicas and condemned from the pods.
func (s *sync) assignOrdinals() {
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

// indices returns the indices of the existing replicas, in ascending order.
func (s *sync) indices() []int { return slices.Sorted(maps.Keys(s.replicas)) }

// ordered reports whether each pod waits for its predecessor.
func ordered(set *appsv1.StatefulSet) bool {
	return set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement
}

// act makes the pods match the spec: it creates missing pods from the lowest ordinal, deletes condemned ones from the
// highest, and continues the rolling update. An ordered set stops at the first pod that is not available; the next sync
// continues when the pod is available.
func (s *sync) act(ctx context.Context) error {
	// The work depends on the number of existing pods, not on the desired number, which may be huge.
	existing := len(s.replicas)
	for i := 0; i < desired(s.set) && len(s.replicas) < existing+burst; i++ {
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

// bringUp creates, recreates or repairs one replica, and reports whether the following replicas must wait.
func (s *sync) bringUp(ctx context.Context, i int) (wait bool, err error) {
	pod := s.replicas[i]
	switch {
	case pod == nil:
		if s.mustWait(podName(s.set, i)) {
			return ordered(s.set), nil
		}
		err := s.create(ctx, i)
		return ordered(s.set) || s.replicas[i] == nil, err // a terminating namespace gets no pod
	case controller.PodEnded(pod) && pod.DeletionTimestamp == nil:
		if s.mustWait(pod.Name) {
			return ordered(s.set), nil
		}
		s.recordRecreation(pod)
		// The next sync creates the replacement, after this pod is deleted.
		return ordered(s.set), s.delete(ctx, pod)
	case pod.DeletionTimestamp != nil || controller.PodEnded(pod):
		return ordered(s.set), nil
	}
	if pod.Status.Phase == corev1.PodPending {
		if err := s.createClaims(ctx, pod); err != nil {
			return true, err
		}
	}
	if err := s.repair(ctx, i); err != nil {
		return true, err
	}
	return ordered(s.set) && !s.available(pod), nil
}

// mustWait reports whether the replacement of a pod is delayed because recent pods of its name failed. It enqueues the
// set again for the end of the delay.
func (s *sync) mustWait(name string) bool {
	wait := s.Failures.Replace(s.key, name)
	if wait > 0 {
		s.EnqueueAfter(s.key, wait)
	}
	return wait > 0
}

// recordRecreation records the event that a failed or terminated pod is recreated.
func (s *sync) recordRecreation(pod *corev1.Pod) {
	if pod.Status.Phase == corev1.PodFailed {
		s.recorder.Eventf(s.set, corev1.EventTypeWarning, "RecreatingFailedPod",
			"StatefulSet %s/%s is recreating failed Pod %s", s.set.Namespace, s.set.Name, pod.Name)
		return
	}
	s.recorder.Eventf(s.set, corev1.EventTypeNormal, "RecreatingTerminatedPod",
		"StatefulSet %s/%s is recreating terminated Pod %s", s.set.Namespace, s.set.Name, pod.Name)
}

// condemn deletes a pod beyond the size of the set and reports whether the pods below it must wait. An ordered set
// deletes a pod that is not available only if all condemned pods below it are available or terminating.
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

// healthy reports whether a pod is running and ready, and is not being deleted.
func healthy(pod *corev1.Pod) bool {
	return pod != nil && pod.Status.Phase == corev1.PodRunning && controller.PodReady(pod) &&
		pod.DeletionTimestamp == nil
}

// available reports whether a pod has been healthy for minReadySeconds. If it only needs time, available enqueues the
// set for that time.
func (s *sync) available(pod *corev1.Pod) bool {
	if !healthy(pod) {
		return false
	}
	ok, start := controller.PodAvailable(pod, s.set.Spec.MinReadySeconds, s.now)
	if !start.IsZero() {
		s.EnqueueAt(s.key, start)
	}
	return ok
}

// create creates the pod of the i-th replica, after its claims.
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
		s.Versions.Expect(s.key, s.statefulSets.pods, created.ResourceVersion)
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

// delete deletes this pod, by its uid. A pod that no longer exists is no error.
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
