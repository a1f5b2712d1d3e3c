package strategy

import (
	"fmt"
	"math"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api"
)

// CheckPreconditions returns a conflict if obj does not meet the client's preconditions.
func CheckPreconditions(res *api.Resource, obj api.Object, p *metav1.Preconditions) error {
	if p == nil {
		return nil
	}
	if p.UID != nil && *p.UID != obj.GetUID() {
		return apierrors.NewConflict(res.GroupResource(), obj.GetName(),
			fmt.Errorf("the UID in the precondition (%s) does not match the UID in record (%s). The object might "+
				"have been deleted and then recreated", *p.UID, obj.GetUID()))
	}
	if p.ResourceVersion != nil && *p.ResourceVersion != obj.GetResourceVersion() {
		return apierrors.NewConflict(res.GroupResource(), obj.GetName(),
			fmt.Errorf("the ResourceVersion in the precondition (%s) does not match the ResourceVersion in record "+
				"(%s). The object might have been modified", *p.ResourceVersion, obj.GetResourceVersion()))
	}
	return nil
}

// BeforeDelete returns a copy of the object with its deletion begun: timestamp, grace period, the finalizers for
// the propagation policy and the kind's own changes.
func BeforeDelete(res *api.Resource, old api.Object, options *metav1.DeleteOptions, now time.Time) api.Object {
	obj := old.DeepCopyObject().(api.Object)
	if res.TerminateOnly && obj.GetDeletionTimestamp() == nil {
		deletedAt := metav1.NewTime(now).Rfc3339Copy()
		obj.SetDeletionTimestamp(&deletedAt)
		res.Terminate(obj)
		return obj
	}
	if hasGraceLeft(res, old) && !shorten(obj, options.GracePeriodSeconds, now) {
		return obj
	}
	propagate(res, obj, options)
	if obj.GetDeletionTimestamp() != nil {
		return obj
	}
	var grace int64
	if res.DeleteGrace != nil {
		grace = res.DeleteGrace(obj, options.GracePeriodSeconds)
	}
	deleteAt := metav1.NewTime(now.Add(graceOf(grace))).Rfc3339Copy()
	obj.SetDeletionTimestamp(&deleteAt)
	obj.SetDeletionGracePeriodSeconds(&grace)
	if obj.GetGeneration() > 0 {
		obj.SetGeneration(obj.GetGeneration() + 1)
	}
	if res.Terminate != nil {
		res.Terminate(obj)
	}
	return obj
}

// graceOf converts seconds to a Duration. It clamps them to the range of Duration, 292 years, because the
// multiplication could overflow to an arbitrary or even negative duration.
func graceOf(seconds int64) time.Duration {
	const limit = math.MaxInt64 / int64(time.Second)
	return time.Duration(max(-limit, min(seconds, limit))) * time.Second
}

// IsGraceful reports whether deleting the object starts or shortens its grace period. Such a delete is written
// before the object is removed, so that watchers can observe that the object is being deleted.
func IsGraceful(res *api.Resource, old api.Object) bool {
	return res.DeleteGrace != nil && (old.GetDeletionTimestamp() == nil || hasGraceLeft(res, old))
}

// hasGraceLeft reports whether the object is being deleted with a grace period.
func hasGraceLeft(res *api.Resource, obj api.Object) bool {
	grace := obj.GetDeletionGracePeriodSeconds()
	return res.DeleteGrace != nil && obj.GetDeletionTimestamp() != nil && grace != nil && *grace > 0
}

// shorten applies another delete to an object that is being deleted. A grace period can only become shorter;
// shorten returns false if the object stays the same. A shorter period that is already over is set to one second,
// so the node still performs the deletion. Only a period of 0 deletes the object at once.
func shorten(obj api.Object, asked *int64, now time.Time) bool {
	have := *obj.GetDeletionGracePeriodSeconds()
	if asked == nil {
		return false
	}
	grace := *asked
	if grace < 0 {
		grace = 1
	}
	if grace >= have {
		return false
	}
	began := obj.GetDeletionTimestamp().Add(-graceOf(have))
	end := metav1.NewTime(began.Add(graceOf(grace))).Rfc3339Copy()
	if end.Time.Before(now) {
		end, grace = metav1.NewTime(now).Rfc3339Copy(), min(grace, 1)
	}
	obj.SetDeletionTimestamp(&end)
	obj.SetDeletionGracePeriodSeconds(&grace)
	return true
}

// propagate sets the finalizers that pass the propagation policy to the garbage collector.
func propagate(res *api.Resource, obj api.Object, options *metav1.DeleteOptions) {
	policy := res.DefaultPropagation
	switch {
	case options.PropagationPolicy != nil:
		policy = *options.PropagationPolicy
	case options.OrphanDependents != nil && *options.OrphanDependents:
		policy = metav1.DeletePropagationOrphan
	case options.OrphanDependents != nil:
		policy = metav1.DeletePropagationBackground
	case policy == "" || slices.ContainsFunc(obj.GetFinalizers(), isPropagation):
		return // the existing finalizers stay in effect
	}
	finalizers := slices.DeleteFunc(slices.Clone(obj.GetFinalizers()), isPropagation)
	switch policy {
	case metav1.DeletePropagationOrphan:
		finalizers = append(finalizers, metav1.FinalizerOrphanDependents)
	case metav1.DeletePropagationForeground:
		finalizers = append(finalizers, metav1.FinalizerDeleteDependents)
	}
	obj.SetFinalizers(finalizers)
}

func isPropagation(finalizer string) bool {
	return finalizer == metav1.FinalizerOrphanDependents || finalizer == metav1.FinalizerDeleteDependents
}

// Ended reports whether an object that is being deleted can be removed now.
func Ended(res *api.Resource, obj api.Object) bool {
	if obj.GetDeletionTimestamp() == nil || len(obj.GetFinalizers()) > 0 {
		return false
	}
	if grace := obj.GetDeletionGracePeriodSeconds(); grace != nil && *grace > 0 {
		return false
	}
	return res.HasFinalizers == nil || !res.HasFinalizers(obj)
}
