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

// maxUnavailable is how many pods an update may have away at once, 1 at least.
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

// roll ends pods of other revisions, from the highest ordinal down to the partition, so that they are
// made anew of the update revision.
//
// With one away at a time it goes strictly downwards: a pod of the new revision that does not
// become available stops it, while one of an old revision, which may be broken, is replaced all the same.
func (s *sync) roll(ctx context.Context) error {
	if s.set.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType {
		return nil
	}
	lowest := partition(s.set) // counted from the first ordinal
	budget := maxUnavailable(s.set)
	above := desired(s.set)
	for _, i := range slices.Backward(s.places()) {
		if budget -= above - 1 - max(i, lowest-1); budget <= 0 || i < lowest {
			return nil // so many are missing between the two
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
