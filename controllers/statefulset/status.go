package statefulset

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// updateStatus writes the status if it differs from the one in the cache.
func (s *sync) updateStatus(ctx context.Context, cached *appsv1.StatefulSet) error {
	s.count()
	s.completeUpdate()
	if equality.Semantic.DeepEqual(cached.Status, s.set.Status) {
		return nil
	}
	updated, err := s.client().AppsV1().StatefulSets(s.set.Namespace).UpdateStatus(ctx, s.set, metav1.UpdateOptions{})
	return s.ExpectUpdate(s.informer, updated, err)
}

// count sets the counters of the status.
func (s *sync) count() {
	status := &s.set.Status
	status.ObservedGeneration = s.set.Generation
	status.Replicas, status.ReadyReplicas, status.AvailableReplicas, status.CurrentReplicas, status.UpdatedReplicas = 0,
		0, 0, 0, 0
	for _, pod := range s.pods {
		status.Replicas++
		// Terminating pods count as well, as long as they are ready.
		if pod.Status.Phase == corev1.PodRunning && controller.PodReady(pod) {
			status.ReadyReplicas++
			if ok, _ := controller.PodAvailable(pod, s.set.Spec.MinReadySeconds, s.now); ok {
				status.AvailableReplicas++
			}
		}
		if pod.DeletionTimestamp != nil {
			continue
		}
		if revisionOf(pod) == s.current.Name {
			status.CurrentReplicas++
		}
		if revisionOf(pod) == s.update.Name {
			status.UpdatedReplicas++
		}
	}
}

// completeUpdate makes the update revision the current one if every pod has it and is ready.
func (s *sync) completeUpdate() {
	status := &s.set.Status
	if s.set.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType ||
		status.UpdatedReplicas != status.Replicas || status.ReadyReplicas != status.Replicas ||
		int(status.Replicas) != desired(s.set) {
		return
	}
	status.CurrentRevision, status.CurrentReplicas = status.UpdateRevision, status.UpdatedReplicas
}
