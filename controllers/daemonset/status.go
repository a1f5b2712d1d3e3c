package daemonset

import (
	"context"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers/controller"
)

// updateStatus writes the status if it differs from the one in the cache.
func (l *look) updateStatus(ctx context.Context, cached *appsv1.DaemonSet) error {
	l.count()
	if equality.Semantic.DeepEqual(cached.Status, l.set.Status) {
		return nil
	}
	updated, err := l.client.AppsV1().DaemonSets(l.set.Namespace).UpdateStatus(ctx, l.set, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	l.written.Note(l.key, l.informer, updated.ResourceVersion)
	return nil
}

// count counts Nodes, not pods: of several pods on one Node the oldest speaks, so that a Node is updated only when the
// pod of the old template has left it.
func (l *look) count() {
	s := &l.set.Status
	*s = appsv1.DaemonSetStatus{ObservedGeneration: l.set.Generation, CollisionCount: s.CollisionCount, Conditions: s.Conditions}
	for _, node := range l.nodes {
		run, _ := l.suits(node)
		here := slices.DeleteFunc(slices.Clone(l.byNode[node.Name]), func(pod *corev1.Pod) bool {
			return controller.PodEnded(pod) && pod.DeletionTimestamp != nil
		})
		if !run {
			if len(here) > 0 {
				s.NumberMisscheduled++
			}
			continue
		}
		s.DesiredNumberScheduled++
		if len(here) == 0 {
			continue
		}
		s.CurrentNumberScheduled++
		pod := slices.MinFunc(here, l.boundThenOlderFirst)
		if controller.PodReady(pod) {
			s.NumberReady++
			ok, wait := controller.PodAvailable(pod, l.set.Spec.MinReadySeconds, l.now)
			if ok {
				s.NumberAvailable++
			} else if wait > 0 {
				l.EnqueueAfter(l.key, wait)
			}
		}
		if l.isCurrent(pod) {
			s.UpdatedNumberScheduled++
		}
	}
	s.NumberUnavailable = s.DesiredNumberScheduled - s.NumberAvailable
}
