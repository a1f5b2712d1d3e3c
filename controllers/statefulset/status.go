package statefulset

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers/controller"
)

// updateStatus writes the status if it differs from the one in the cache.
func (l *look) updateStatus(ctx context.Context, cached *appsv1.StatefulSet) error {
	l.count()
	l.completeUpdate()
	if equality.Semantic.DeepEqual(cached.Status, l.set.Status) {
		return nil
	}
	updated, err := l.client.AppsV1().StatefulSets(l.set.Namespace).UpdateStatus(ctx, l.set, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	l.written.Note(l.key, l.informer, updated.ResourceVersion)
	return nil
}

func (l *look) count() {
	s := &l.set.Status
	s.ObservedGeneration = l.set.Generation
	s.Replicas, s.ReadyReplicas, s.AvailableReplicas, s.CurrentReplicas, s.UpdatedReplicas = 0, 0, 0, 0, 0
	for _, pod := range l.pods {
		s.Replicas++
		// Also those that are being deleted, as long as they are ready.
		if pod.Status.Phase == corev1.PodRunning && controller.PodReady(pod) {
			s.ReadyReplicas++
			if ok, _ := controller.PodAvailable(pod, l.set.Spec.MinReadySeconds, l.now); ok {
				s.AvailableReplicas++
			}
		}
		if pod.DeletionTimestamp != nil {
			continue
		}
		if revisionOf(pod) == l.current.Name {
			s.CurrentReplicas++
		}
		if revisionOf(pod) == l.update.Name {
			s.UpdatedReplicas++
		}
	}
}

// completeUpdate makes the update revision the current one when every pod has it and is ready.
func (l *look) completeUpdate() {
	s := &l.set.Status
	if l.set.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType ||
		s.UpdatedReplicas != s.Replicas || s.ReadyReplicas != s.Replicas || int(s.Replicas) != desired(l.set) {
		return
	}
	s.CurrentRevision, s.CurrentReplicas = s.UpdateRevision, s.UpdatedReplicas
}
