package deployment

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// The reasons of conditions, which "kubectl rollout status" and other clients check.
const (
	replicaSetUpdated        = "ReplicaSetUpdated"
	newReplicaSetCreated     = "NewReplicaSetCreated"
	foundNewReplicaSet       = "FoundNewReplicaSet"
	newReplicaSetAvailable   = "NewReplicaSetAvailable"
	failedCreate             = "ReplicaSetCreateError"
	progressDeadlineExceeded = "ProgressDeadlineExceeded"
	pausedReason             = "DeploymentPaused"
	resumedReason            = "DeploymentResumed"
)

func conditionOf(s appsv1.DeploymentStatus, t appsv1.DeploymentConditionType) *appsv1.DeploymentCondition {
	for i := range s.Conditions {
		if s.Conditions[i].Type == t {
			return &s.Conditions[i]
		}
	}
	return nil
}

func (r *rollout) condition(t appsv1.DeploymentConditionType, status corev1.ConditionStatus, reason,
	message string) appsv1.DeploymentCondition {
	now := metav1.NewTime(r.clock.Now())
	return appsv1.DeploymentCondition{
		Type: t, Status: status, Reason: reason, Message: message,
		LastUpdateTime: now, LastTransitionTime: now,
	}
}

// setCondition replaces a condition, unless status and reason are unchanged: lastUpdateTime is where the
// progress deadline starts.
func setCondition(s *appsv1.DeploymentStatus, c appsv1.DeploymentCondition) {
	if old := conditionOf(*s, c.Type); old != nil {
		if old.Status == c.Status && old.Reason == c.Reason {
			return
		}
		if old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
	}
	replaceCondition(s, c)
}

func replaceCondition(s *appsv1.DeploymentStatus, c appsv1.DeploymentCondition) {
	removeCondition(s, c.Type)
	s.Conditions = append(s.Conditions, c)
}

func removeCondition(s *appsv1.DeploymentStatus, t appsv1.DeploymentConditionType) {
	s.Conditions = slices.DeleteFunc(s.Conditions, func(c appsv1.DeploymentCondition) bool { return c.Type == t })
}

func (r *rollout) hasDeadline() bool {
	s := r.d.Spec.ProgressDeadlineSeconds
	return s != nil && *s != math.MaxInt32
}

func (r *rollout) deadline() time.Duration {
	return time.Duration(*r.d.Spec.ProgressDeadlineSeconds) * time.Second
}

// complete reports whether all pods have the new template and are available, and no other pods are left.
func complete(d *appsv1.Deployment, s appsv1.DeploymentStatus) bool {
	return s.UpdatedReplicas == desired(d) && s.Replicas == desired(d) &&
		s.AvailableReplicas == desired(d) && s.ObservedGeneration >= d.Generation
}

// progressed reports whether the rollout made progress between two statuses.
func progressed(before, now appsv1.DeploymentStatus) bool {
	return now.UpdatedReplicas > before.UpdatedReplicas ||
		now.Replicas-now.UpdatedReplicas < before.Replicas-before.UpdatedReplicas ||
		now.ReadyReplicas > before.ReadyReplicas ||
		now.AvailableReplicas > before.AvailableReplicas
}

// timedOut reports whether the last progress was longer ago than the deadline.
func (r *rollout) timedOut(s appsv1.DeploymentStatus) bool {
	c := conditionOf(s, appsv1.DeploymentProgressing)
	if !r.hasDeadline() || c == nil || c.Reason == newReplicaSetAvailable {
		return false
	}
	return c.Reason == progressDeadlineExceeded || r.clock.Since(c.LastUpdateTime.Time) > r.deadline()
}

// status returns the status by the ReplicaSets' statuses, with the condition Available updated. Progressing and
// ReplicaFailure are as before.
func (r *rollout) status() appsv1.DeploymentStatus {
	s := *r.d.Status.DeepCopy()
	s.ObservedGeneration = r.d.Generation
	s.Replicas = sum(r.sets, running)
	s.UpdatedReplicas = sum([]*appsv1.ReplicaSet{r.current}, running)
	s.ReadyReplicas = sum(r.sets, func(s appsv1.ReplicaSetStatus) int32 { return s.ReadyReplicas })
	s.AvailableReplicas = sum(r.sets, available)
	s.UnavailableReplicas = max(0, totalReplicas(r.sets...)-s.AvailableReplicas)
	s.TerminatingReplicas = terminating(r.sets)
	if s.AvailableReplicas >= desired(r.d)-maxUnavailable(r.d) {
		setCondition(&s, r.condition(appsv1.DeploymentAvailable, corev1.ConditionTrue,
			"MinimumReplicasAvailable", "Deployment has minimum availability."))
	} else {
		setCondition(&s, r.condition(appsv1.DeploymentAvailable, corev1.ConditionFalse,
			"MinimumReplicasUnavailable", "Deployment does not have minimum availability."))
	}
	return s
}

// terminating returns the number of terminating pods, or nil if a ReplicaSet does not report it.
func terminating(sets []*appsv1.ReplicaSet) *int32 {
	n := 0
	for _, rs := range sets {
		if rs.Status.TerminatingReplicas == nil {
			return nil
		}
		n += int(*rs.Status.TerminatingReplicas)
	}
	return new(controller.Int32(n))
}

// updateStatus writes the status while no rollout is in progress, and leaves the condition Progressing.
func (r *rollout) updateStatus(ctx context.Context) error {
	return r.write(ctx, r.status())
}

// updateProgress writes the status during or after a rollout, with all conditions.
func (r *rollout) updateProgress(ctx context.Context) error {
	s := r.status()
	r.judgeProgress(&s)
	if failure := r.replicaFailure(); failure != nil {
		setCondition(&s, *failure)
	} else {
		removeCondition(&s, appsv1.DeploymentReplicaFailure)
	}
	if err := r.write(ctx, s); err != nil {
		return err
	}
	r.enqueueAtDeadline(s)
	return nil
}

func (r *rollout) judgeProgress(s *appsv1.DeploymentStatus) {
	if !r.hasDeadline() {
		removeCondition(s, appsv1.DeploymentProgressing)
		return
	}
	before := conditionOf(r.d.Status, appsv1.DeploymentProgressing)
	// A completed rollout stays so, even if pods become unavailable later.
	if s.Replicas == s.UpdatedReplicas && before != nil && before.Reason == newReplicaSetAvailable {
		return
	}
	subject := fmt.Sprintf("Deployment %q", r.d.Name)
	if r.current != nil {
		subject = fmt.Sprintf("ReplicaSet %q", r.current.Name)
	}
	switch {
	case complete(r.d, *s):
		setCondition(s, r.condition(appsv1.DeploymentProgressing, corev1.ConditionTrue,
			newReplicaSetAvailable, subject+" has successfully progressed."))
	case progressed(r.d.Status, *s):
		c := r.condition(appsv1.DeploymentProgressing, corev1.ConditionTrue, replicaSetUpdated, subject+
			" is progressing.")
		if before != nil && before.Status == corev1.ConditionTrue {
			c.LastTransitionTime = before.LastTransitionTime
		}
		// The condition is replaced even if the reason is the same: the deadline starts again.
		replaceCondition(s, c)
	case r.timedOut(*s):
		setCondition(s, r.condition(appsv1.DeploymentProgressing, corev1.ConditionFalse,
			progressDeadlineExceeded, subject+" has timed out progressing."))
	}
}

// replicaFailure returns the condition ReplicaFailure of the new ReplicaSet, or else of the first old one that
// has it.
func (r *rollout) replicaFailure() *appsv1.DeploymentCondition {
	for _, rs := range append([]*appsv1.ReplicaSet{r.current}, r.old...) {
		if rs == nil {
			continue
		}
		for _, c := range rs.Status.Conditions {
			if c.Type == appsv1.ReplicaSetReplicaFailure {
				return &appsv1.DeploymentCondition{
					Type: appsv1.DeploymentReplicaFailure, Status: c.Status, Reason: c.Reason, Message: c.Message,
					LastTransitionTime: c.LastTransitionTime, LastUpdateTime: c.LastTransitionTime,
				}
			}
		}
	}
	return nil
}

// enqueueAtDeadline enqueues the Deployment for its progress deadline, which no watch event announces.
func (r *rollout) enqueueAtDeadline(s appsv1.DeploymentStatus) {
	c := conditionOf(s, appsv1.DeploymentProgressing)
	if c == nil || c.Reason == progressDeadlineExceeded || complete(r.d, s) {
		return
	}
	deadline := c.LastUpdateTime.Add(r.deadline())
	if now := r.clock.Now(); deadline.Before(now) {
		deadline = now
	}
	// A second is added because times in conditions are truncated to seconds.
	r.EnqueueAt(controller.KeyOf(r.d), deadline.Add(time.Second))
}

// syncPausedCondition records in the condition Progressing that the rollout was paused or resumed, so that the
// progress deadline does not run while it is paused.
func (r *rollout) syncPausedCondition(ctx context.Context) error {
	if !r.hasDeadline() {
		return nil
	}
	c := conditionOf(r.d.Status, appsv1.DeploymentProgressing)
	if c != nil && c.Reason == progressDeadlineExceeded {
		return nil
	}
	paused := c != nil && c.Reason == pausedReason
	switch {
	case r.d.Spec.Paused && !paused:
		return r.setProgressing(ctx, corev1.ConditionUnknown, pausedReason, "Deployment is paused")
	case !r.d.Spec.Paused && paused:
		return r.setProgressing(ctx, corev1.ConditionUnknown, resumedReason, "Deployment is resumed")
	}
	return nil
}

func (r *rollout) setProgressing(ctx context.Context, status corev1.ConditionStatus, reason, message string) error {
	setCondition(&r.d.Status, r.condition(appsv1.DeploymentProgressing, status, reason, message))
	return r.writeStatus(ctx)
}

// write stores s if it differs from the present status.
func (r *rollout) write(ctx context.Context, s appsv1.DeploymentStatus) error {
	if equality.Semantic.DeepEqual(r.d.Status, s) {
		return nil
	}
	r.d.Status = s
	return r.writeStatus(ctx)
}

func (r *rollout) writeStatus(ctx context.Context) error {
	updated, err := r.client().AppsV1().Deployments(r.d.Namespace).UpdateStatus(ctx, r.d, metav1.UpdateOptions{})
	if err != nil {
		return err
	}
	r.d = updated
	return nil
}
