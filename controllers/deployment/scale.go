package deployment

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

func desired(d *appsv1.Deployment) int32 {
	if d.Spec.Replicas == nil {
		return 1
	}
	return *d.Spec.Replicas
}

func replicasOf(rs *appsv1.ReplicaSet) int32 {
	if rs == nil {
		return 0
	}
	if rs.Spec.Replicas == nil {
		return 1
	}
	return *rs.Spec.Replicas
}

func totalReplicas(sets ...*appsv1.ReplicaSet) int32 {
	n := 0
	for _, rs := range sets {
		n += int(replicasOf(rs))
	}
	return controller.Int32(n)
}

func sum(sets []*appsv1.ReplicaSet, count func(appsv1.ReplicaSetStatus) int32) int32 {
	n := 0
	for _, rs := range sets {
		if rs != nil {
			n += int(count(rs.Status))
		}
	}
	return controller.Int32(n)
}

func running(s appsv1.ReplicaSetStatus) int32   { return s.Replicas }
func available(s appsv1.ReplicaSetStatus) int32 { return s.AvailableReplicas }

// fenceposts returns how many pods may exist above, and be unavailable below, spec.replicas during a rolling
// update. Surge is rounded up and unavailability down, as in Kubernetes. If both are zero, one pod may be
// unavailable, because the rollout could not proceed otherwise.
func fenceposts(d *appsv1.Deployment) (surge, unavailable int32) {
	rolling := d.Spec.Strategy.RollingUpdate
	if d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType || rolling == nil {
		return 0, 0
	}
	total := desired(d)
	surge = scaled(rolling.MaxSurge, total, true)
	unavailable = scaled(rolling.MaxUnavailable, total, false)
	if surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	return surge, unavailable
}

// scaled converts a number or percentage to pods. Validation has rejected all other values.
func scaled(value *intstr.IntOrString, total int32, up bool) int32 {
	n, err := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(value, intstr.FromInt32(0)), int(total), up)
	if err != nil {
		return 0
	}
	return controller.Int32(n)
}

// maxUnavailable returns how many of spec.replicas may be unavailable; at most all.
func maxUnavailable(d *appsv1.Deployment) int32 {
	_, n := fenceposts(d)
	return min(n, desired(d))
}

// maxTotal returns how many pods may exist at once.
func maxTotal(d *appsv1.Deployment) int32 {
	surge, _ := fenceposts(d)
	return controller.Int32(int(desired(d)) + int(surge))
}

// newReplicas returns the size that the new ReplicaSet may have now. rs is the new ReplicaSet, which need not
// exist yet.
func (r *rollout) newReplicas(rs *appsv1.ReplicaSet) int32 {
	if r.d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		return desired(r.d)
	}
	have := replicasOf(rs)
	if rs.Spec.Replicas == nil {
		have = 0
	}
	room := int(maxTotal(r.d)) - int(max(have, rs.Status.Replicas))
	for _, old := range r.old {
		// A ReplicaSet that was just scaled down still has the pods that it is about to delete.
		room -= int(max(replicasOf(old), old.Status.Replicas))
	}
	if room <= 0 {
		return have
	}
	return have + controller.Int32(min(room, int(desired(r.d)-have)))
}

// wasScaled reports whether spec.replicas changed since the ReplicaSets were last sized.
func (r *rollout) wasScaled() bool {
	for _, rs := range active(r.sets) {
		size, ok := sizeAnnotation(rs, desiredReplicasAnnotation)
		if ok && size != desired(r.d) {
			return true
		}
	}
	return false
}

func sizeAnnotation(rs *appsv1.ReplicaSet, key string) (int32, bool) {
	n, err := strconv.ParseInt(rs.Annotations[key], 10, 32)
	return int32(n), err == nil
}

// setSizeAnnotations records the sizes for later proportional scaling, and reports whether they changed.
func setSizeAnnotations(rs *appsv1.ReplicaSet, d *appsv1.Deployment) (changed bool) {
	if rs.Annotations == nil {
		rs.Annotations = map[string]string{}
	}
	for key, n := range map[string]int32{
		desiredReplicasAnnotation: desired(d),
		maxReplicasAnnotation:     maxTotal(d),
	} {
		if text := strconv.Itoa(int(n)); rs.Annotations[key] != text {
			rs.Annotations[key] = text
			changed = true
		}
	}
	return changed
}

// resize writes a ReplicaSet's size and size annotations, if any of them changed.
func (r *rollout) resize(ctx context.Context, rs *appsv1.ReplicaSet, size int32) error {
	before := replicasOf(rs)
	if !setSizeAnnotations(rs, r.d) && before == size {
		return nil
	}
	rs.Spec.Replicas = &size
	updated, err := r.client().AppsV1().ReplicaSets(rs.Namespace).Update(ctx, rs, metav1.UpdateOptions{})
	if err != nil {
		return err
	}
	r.replace(updated)
	if before != size {
		direction := "up"
		if size < before {
			direction = "down"
		}
		r.recorder.Eventf(r.d, corev1.EventTypeNormal, "ScalingReplicaSet",
			"Scaled %s replica set %s from %d to %d", direction, rs.Name, before, size)
	}
	return nil
}

// scaleProportionally applies spec.replicas. If one ReplicaSet is in use, it gets all replicas. During a
// rollout the change is distributed by size, so that a broken new template does not get all added pods.
func (r *rollout) scaleProportionally(ctx context.Context) error {
	if only := r.onlyActive(); only != nil {
		if replicasOf(only) == desired(r.d) {
			return nil
		}
		return r.resize(ctx, only, desired(r.d))
	}
	if r.saturated() {
		for _, rs := range active(r.old) {
			if err := r.resize(ctx, rs, 0); err != nil {
				return err
			}
		}
		return nil
	}
	if r.d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		return nil
	}
	sets := active(r.sets)
	var room int32
	if desired(r.d) > 0 {
		room = maxTotal(r.d)
	}
	for i, size := range shareOut(sets, r.d, room-totalReplicas(sets...)) {
		if err := r.resize(ctx, sets[i], size); err != nil {
			return err
		}
	}
	return nil
}

// onlyActive returns the only ReplicaSet with replicas. If none has replicas, it returns the new one or else
// the youngest. It returns nil if several have replicas or there is no ReplicaSet.
func (r *rollout) onlyActive() *appsv1.ReplicaSet {
	switch inUse := active(r.sets); {
	case len(inUse) == 1:
		return inUse[0]
	case len(inUse) > 1 || len(r.sets) == 0:
		return nil
	case r.current != nil:
		return r.current
	}
	return r.old[len(r.old)-1]
}

// saturated reports whether the new ReplicaSet has all the Deployment's replicas in its spec and available in
// its status.
func (r *rollout) saturated() bool {
	if r.current == nil {
		return false
	}
	size, ok := sizeAnnotation(r.current, desiredReplicasAnnotation)
	return ok && replicasOf(r.current) == desired(r.d) && size == desired(r.d) &&
		r.current.Status.AvailableReplicas == desired(r.d)
}

// shareOut returns each ReplicaSet's new size after change pods are added or, if it is negative, removed. It
// sorts sets: larger first, and among equals the younger first when growing and the older first when shrinking.
// The first takes the remainder from rounding.
func shareOut(sets []*appsv1.ReplicaSet, d *appsv1.Deployment, change int32) []int32 {
	slices.SortStableFunc(sets, func(a, b *appsv1.ReplicaSet) int {
		byAge := olderFirst(a, b)
		if change > 0 {
			byAge = -byAge
		}
		return cmp.Or(cmp.Compare(replicasOf(b), replicasOf(a)), byAge)
	})
	sizes := make([]int32, len(sets))
	left := int(change)
	for i, rs := range sets {
		share := fraction(rs, d)
		if change > 0 {
			share = min(share, left)
		} else {
			share = max(share, left)
		}
		if left == 0 {
			share = 0
		}
		sizes[i] = controller.Int32(int(replicasOf(rs)) + share)
		left -= share
	}
	if len(sizes) > 0 {
		sizes[0] = controller.Int32(max(0, int(sizes[0])+left))
	}
	return sizes
}

// fraction returns how many pods rs gains or loses when the Deployment goes from the size in rs's annotation to
// its present maximum.
func fraction(rs *appsv1.ReplicaSet, d *appsv1.Deployment) int {
	have := int(replicasOf(rs))
	if desired(d) == 0 {
		return -have
	}
	before, ok := sizeAnnotation(rs, maxReplicasAnnotation)
	if !ok || before == 0 {
		// Without the annotation, which another release or a user may have removed, the present size counts.
		before = d.Status.Replicas
	}
	if before == 0 {
		return 0
	}
	return int(math.Round(float64(have)*float64(maxTotal(d))/float64(before))) - have
}
