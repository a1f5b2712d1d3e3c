package daemonset

import (
	"context"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// updateStatus writes the status if it differs from the one in the cache.
func (s *sync) updateStatus(ctx context.Context, cached *appsv1.DaemonSet) error {
	s.count()
	if equality.Semantic.DeepEqual(cached.Status, s.set.Status) {
		return nil
	}
	updated, err := s.client().AppsV1().DaemonSets(s.set.Namespace).UpdateStatus(ctx, s.set, metav1.UpdateOptions{})
	return s.ExpectUpdate(s.informer, updated, err)
}

// count computes the status. It counts Nodes, not pods: if a Node has several pods, the oldest counts, so that
// a Node is updated only when the pod of the old template has left it.
func (s *sync) count() {
	status := &s.set.Status
	*status = appsv1.DaemonSetStatus{ObservedGeneration: s.set.Generation, CollisionCount: status.CollisionCount,
		Conditions: status.Conditions}
	for _, node := range s.nodes {
		run, _ := s.suits(node)
		here := slices.DeleteFunc(slices.Clone(s.byNode[node.Name]), func(pod *corev1.Pod) bool {
			return controller.PodEnded(pod) && pod.DeletionTimestamp != nil
		})
		if !run {
			if len(here) > 0 {
				status.NumberMisscheduled++
			}
			continue
		}
		status.DesiredNumberScheduled++
		if len(here) == 0 {
			continue
		}
		status.CurrentNumberScheduled++
		pod := slices.MinFunc(here, s.boundThenOlderFirst)
		if controller.PodReady(pod) {
			status.NumberReady++
			ok, from := controller.PodAvailable(pod, s.set.Spec.MinReadySeconds, s.now)
			if ok {
				status.NumberAvailable++
			} else if !from.IsZero() {
				s.EnqueueAt(s.key, from)
			}
		}
		if s.isCurrent(pod) {
			status.UpdatedNumberScheduled++
		}
	}
	status.NumberUnavailable = status.DesiredNumberScheduled - status.NumberAvailable
}
