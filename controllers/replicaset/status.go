package replicaset

import (
	"context"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// updateStatus writes the status if it differs from the one in the cache.
func (r *replicaSets) updateStatus(ctx context.Context, key string, rs *appsv1.ReplicaSet, active []*corev1.Pod,
	terminating int32, settled bool, scaleErr error) error {
	now := metav1.NewTime(r.clock.Now())
	status, next := count(rs, active, terminating, now)
	if !settled {
		// The cache does not show all pods yet. With an old observedGeneration, clients do not rely on the counters.
		status.ObservedGeneration = rs.Status.ObservedGeneration
	}
	setReplicaFailure(&status, int(replicas(rs))-len(active), scaleErr, now)
	if r.source.Kind().Group == "" {
		status.TerminatingReplicas = nil // ReplicationControllers have no such field
	}
	if !next.IsZero() {
		r.EnqueueAt(key, next)
	}
	if equality.Semantic.DeepEqual(rs.Status, status) {
		return nil
	}
	updated := rs.DeepCopy()
	updated.Status = status
	return r.source.UpdateStatus(ctx, updated)
}

// count returns the status of rs with the counts of its pods, and the time when the next ready pod becomes available;
// the zero time if no ready pod is waiting.
func count(rs *appsv1.ReplicaSet, active []*corev1.Pod, terminating int32,
	now metav1.Time) (status appsv1.ReplicaSetStatus, next time.Time) {
	status = *rs.Status.DeepCopy()
	status.ObservedGeneration = rs.Generation
	status.Replicas = int32(len(active))
	status.FullyLabeledReplicas, status.ReadyReplicas, status.AvailableReplicas = 0, 0, 0
	status.TerminatingReplicas = &terminating
	template := labels.SelectorFromValidatedSet(rs.Spec.Template.Labels)
	for _, pod := range active {
		if template.Matches(labels.Set(pod.Labels)) {
			status.FullyLabeledReplicas++
		}
		if !controller.PodReady(pod) {
			continue
		}
		status.ReadyReplicas++
		available, start := controller.PodAvailable(pod, rs.Spec.MinReadySeconds, now.Time)
		if available {
			status.AvailableReplicas++
		} else if !start.IsZero() && (next.IsZero() || start.Before(next)) {
			next = start
		}
	}
	return status, next
}

// setReplicaFailure adds the condition ReplicaFailure while pods cannot be created or deleted, and removes it
// afterwards.
func setReplicaFailure(status *appsv1.ReplicaSetStatus, missing int, err error, now metav1.Time) {
	isFailure := func(c appsv1.ReplicaSetCondition) bool { return c.Type == appsv1.ReplicaSetReplicaFailure }
	failing := slices.ContainsFunc(status.Conditions, isFailure)
	switch {
	case err == nil && failing:
		status.Conditions = slices.DeleteFunc(status.Conditions, isFailure)
	case err != nil && !failing:
		reason := "FailedCreate"
		if missing < 0 {
			reason = "FailedDelete"
		}
		status.Conditions = append(status.Conditions, appsv1.ReplicaSetCondition{
			Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue,
			Reason: reason, Message: err.Error(), LastTransitionTime: now,
		})
	}
}
