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

	"github.com/coxswain-dev/coxswain/controllers/controller"
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

// burst bounds how many pods one look makes. Their events bring the next look.
const burst = 500

// sort puts the pods into their places.
func (l *look) sort() {
	first := firstOrdinal(l.set)
	l.replicas = map[int]*corev1.Pod{}
	for _, pod := range l.pods {
		n, _ := ordinalOf(l.set, pod.Name)
		if i := n - first; i >= 0 && i < desired(l.set) {
			l.replicas[i] = pod
		} else {
			l.condemned = append(l.condemned, pod)
		}
	}
	slices.SortFunc(l.condemned, func(a, b *corev1.Pod) int {
		m, _ := ordinalOf(l.set, a.Name)
		n, _ := ordinalOf(l.set, b.Name)
		return cmp.Compare(n, m)
	})
}

// places are those of the pods that there are, in their order.
func (l *look) places() []int { return slices.Sorted(maps.Keys(l.replicas)) }

// ordered says whether one pod waits for the one before it.
func ordered(set *appsv1.StatefulSet) bool {
	return set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement
}

// act does what is to be done now: first the pods that should be there, from the lowest ordinal, then
// those that should not, from the highest, then the update. An ordered set stops at the first
// pod that is not available, and goes on when it is.
func (l *look) act(ctx context.Context) error {
	// What it does is in proportion to the pods that there are, not to those that are asked for.
	have := len(l.replicas)
	for i := 0; i < desired(l.set) && len(l.replicas) < have+burst; i++ {
		if wait, err := l.bringUp(ctx, i); err != nil || wait {
			return err
		}
	}
	if err := l.syncClaimOwners(ctx); err != nil {
		return err
	}
	for i, pod := range l.condemned {
		if wait, err := l.condemn(ctx, i, pod); err != nil || wait {
			return err
		}
	}
	return l.roll(ctx)
}

// bringUp sees to one replica and says whether those after it have to wait.
func (l *look) bringUp(ctx context.Context, i int) (wait bool, err error) {
	pod := l.replicas[i]
	switch {
	case pod == nil:
		if l.mustWait(podName(l.set, i)) {
			return ordered(l.set), nil
		}
		err := l.create(ctx, i)
		return ordered(l.set) || l.replicas[i] == nil, err // none is made in a namespace that goes
	case controller.PodEnded(pod) && pod.DeletionTimestamp == nil:
		if l.mustWait(pod.Name) {
			return ordered(l.set), nil
		}
		l.tellRecreating(pod)
		// The next is made when this one is gone.
		return ordered(l.set), l.delete(ctx, pod)
	case pod.DeletionTimestamp != nil || controller.PodEnded(pod):
		return ordered(l.set), nil
	}
	if pod.Status.Phase == corev1.PodPending {
		if err := l.createClaims(ctx, pod); err != nil {
			return true, err
		}
	}
	if err := l.mend(ctx, i); err != nil {
		return true, err
	}
	return ordered(l.set) && !l.available(pod), nil
}

// mustWait says whether a pod is not to be replaced yet, since it and others of its name failed shortly before. The set is
// looked at again when it may be.
func (l *look) mustWait(name string) bool {
	wait := l.failures.Replace(l.key, name)
	if wait > 0 {
		l.EnqueueAfter(l.key, wait)
	}
	return wait > 0
}

func (l *look) tellRecreating(pod *corev1.Pod) {
	if pod.Status.Phase == corev1.PodFailed {
		l.recorder.Eventf(l.set, corev1.EventTypeWarning, "RecreatingFailedPod",
			"StatefulSet %s/%s is recreating failed Pod %s", l.set.Namespace, l.set.Name, pod.Name)
		return
	}
	l.recorder.Eventf(l.set, corev1.EventTypeNormal, "RecreatingTerminatedPod",
		"StatefulSet %s/%s is recreating terminated Pod %s", l.set.Namespace, l.set.Name, pod.Name)
}

// condemn ends a pod beyond the size of the set and says whether those below it have to wait.
// In an ordered set one that is not available goes only when it is the lowest that is not.
func (l *look) condemn(ctx context.Context, i int, pod *corev1.Pod) (wait bool, err error) {
	if pod.DeletionTimestamp != nil {
		return ordered(l.set), nil
	}
	if ordered(l.set) && !l.available(pod) {
		for _, below := range l.condemned[i+1:] {
			if !l.available(below) && below.DeletionTimestamp == nil {
				return true, nil
			}
		}
	}
	return ordered(l.set), l.delete(ctx, pod)
}

// healthy says whether a pod runs, is ready, and is not about to end.
func healthy(pod *corev1.Pod) bool {
	return pod != nil && pod.Status.Phase == corev1.PodRunning && controller.PodReady(pod) && pod.DeletionTimestamp == nil
}

// available says whether a pod has been healthy for minReadySeconds; where it will be so by
// itself it brings the set back then.
func (l *look) available(pod *corev1.Pod) bool {
	if !healthy(pod) {
		return false
	}
	ok, wait := controller.PodAvailable(pod, l.set.Spec.MinReadySeconds, l.now)
	if wait > 0 {
		l.EnqueueAfter(l.key, wait)
	}
	return ok
}

func (l *look) create(ctx context.Context, i int) error {
	pod, revision, err := l.newPod(i)
	if err != nil {
		return err
	}
	if err := l.createClaims(ctx, pod); err != nil {
		return err
	}
	created, err := l.client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	switch {
	case err == nil:
		l.written.Note(l.key, l.statefulSets.pods, created.ResourceVersion)
		l.replicas[i], l.pods = created, append(l.pods, created)
		l.recorder.Eventf(l.set, corev1.EventTypeNormal, "SuccessfulCreate",
			"create Pod %s in StatefulSet %s successful", pod.Name, l.set.Name)
		l.Log.Debug("pod created", "pod", controller.KeyOf(created), "revision", revision)
		return nil
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil
	}
	l.recorder.Eventf(l.set, corev1.EventTypeWarning, "FailedCreate",
		"create Pod %s in StatefulSet %s failed error: %v", pod.Name, l.set.Name, err)
	return err
}

func (l *look) delete(ctx context.Context, pod *corev1.Pod) error {
	l.expected.ExpectDeletions(l.key, pod.UID)
	err := l.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, *metav1.NewPreconditionDeleteOptions(string(pod.UID)))
	if err == nil {
		l.recorder.Eventf(l.set, corev1.EventTypeNormal, "SuccessfulDelete",
			"delete Pod %s in StatefulSet %s successful", pod.Name, l.set.Name)
		return nil
	}
	l.expected.DeletionObserved(l.key, pod.UID)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	l.recorder.Eventf(l.set, corev1.EventTypeWarning, "FailedDelete",
		"delete Pod %s in StatefulSet %s failed error: %v", pod.Name, l.set.Name, err)
	return err
}
