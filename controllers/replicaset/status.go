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
	status, look := count(rs, active, terminating, now)
	if !settled {
		// There are pods that the cache does not show yet: a reader of this generation must not rely on the rest.
		status.ObservedGeneration = rs.Status.ObservedGeneration
	}
	setReplicaFailure(&status, int(replicas(rs))-len(active), scaleErr, now)
	if r.source.Kind().Group == "" {
		status.TerminatingReplicas = nil // ReplicationControllers have no such field
	}
	if !look.IsZero() {
		r.EnqueueAt(key, look)
	}
	if equality.Semantic.DeepEqual(rs.Status, status) {
		return nil
	}
	updated := rs.DeepCopy()
	updated.Status = status
	return r.source.UpdateStatus(ctx, updated)
}

// count returns rs's status as its pods show it, and when the next one that is ready
// becomes available (zero: none is waiting).
func count(rs *appsv1.ReplicaSet, active []*corev1.Pod, terminating int32,
	now metav1.Time) (status appsv1.ReplicaSetStatus, look time.Time) {
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
		available, from := controller.PodAvailable(pod, rs.Spec.MinReadySeconds, now.Time)
		if available {
			status.AvailableReplicas++
		} else if !from.IsZero() && (look.IsZero() || from.Before(look)) {
			look = from
		}
	}
	return status, look
}

// setReplicaFailure keeps the ReplicaFailure condition while pods cannot be made or deleted.
func setReplicaFailure(status *appsv1.ReplicaSetStatus, missing int, err error, now metav1.Time) {
	is := func(c appsv1.ReplicaSetCondition) bool { return c.Type == appsv1.ReplicaSetReplicaFailure }
	failing := slices.ContainsFunc(status.Conditions, is)
	switch {
	case err == nil && failing:
		status.Conditions = slices.DeleteFunc(status.Conditions, is)
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
