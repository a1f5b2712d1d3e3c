package statefulset

import (
	"context"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func revisionOf(pod *corev1.Pod) string { return pod.Labels[appsv1.ControllerRevisionHashLabelKey] }

func partition(set *appsv1.StatefulSet) int {
	if r := set.Spec.UpdateStrategy.RollingUpdate; r != nil && r.Partition != nil {
		return int(*r.Partition)
	}
	return 0
}

// maxUnavailable returns how many pods may be unavailable during an update, at least 1.
func maxUnavailable(set *appsv1.StatefulSet) int {
	r := set.Spec.UpdateStrategy.RollingUpdate
	if r == nil || r.MaxUnavailable == nil {
		return 1
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(r.MaxUnavailable, desired(set), false)
	if err != nil {
		return 1
	}
	return max(1, n)
}

// roll deletes pods of old revisions, from the highest ordinal down to the partition. The next sync recreates them with
// the update revision.
//
// With maxUnavailable 1 the ordinals are updated strictly one after another. A pod of the new revision that does not
// become available stops the update. A pod of an old revision is replaced even if it is unavailable, since the old
// revision may be broken.
func (s *sync) roll(ctx context.Context) error {
	if s.set.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType {
		return nil
	}
	lowest := partition(s.set) // counted from the first ordinal
	budget := maxUnavailable(s.set)
	above := desired(s.set)
	for _, i := range slices.Backward(s.indices()) {
		if budget -= above - 1 - max(i, lowest-1); budget <= 0 || i < lowest {
			return nil // the missing pods in between use up the budget, or the partition is reached
		}
		above = i
		pod := s.replicas[i]
		if revisionOf(pod) != s.update.Name && pod.DeletionTimestamp == nil {
			if err := s.delete(ctx, pod); err != nil {
				return err
			}
			budget--
		} else if !s.available(pod) {
			budget--
		}
		if budget <= 0 {
			return nil
		}
	}
	return nil
}
