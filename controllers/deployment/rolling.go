package deployment

import (
	"context"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// roll takes one step of a rolling update: it scales the new ReplicaSet up as far as maxSurge allows, or else
// the old ones down as far as maxUnavailable allows.
func (r *rollout) roll(ctx context.Context) error {
	if r.observed() && r.needsScaling() {
		if err := r.refresh(ctx); err != nil {
			return err
		}
	}
	if !r.observed() {
		return r.updateProgress(ctx)
	}
	if r.current == nil {
		// The new ReplicaSet is created with as many replicas as are allowed now.
		if err := r.createCurrent(ctx); err != nil {
			return err
		}
	}
	if size := r.targetSize(); size != replicasOf(r.current) {
		if err := r.resize(ctx, r.current, size); err != nil {
			return err
		}
		return r.updateProgress(ctx)
	}
	scaledDown, err := r.shrinkOld(ctx)
	if err != nil {
		return err
	}
	if !scaledDown && complete(r.d, r.d.Status) {
		if err := r.cleanUp(ctx); err != nil {
			return err
		}
	}
	return r.updateProgress(ctx)
}

// needsScaling reports whether the next step creates or deletes pods.
func (r *rollout) needsScaling() bool {
	return r.current == nil || r.targetSize() != replicasOf(r.current) || totalReplicas(r.old...) > 0 && r.excess() > 0
}

// refresh reads the ReplicaSets from the API server. The cache may lack ReplicaSets that were created or
// resized a moment ago for another template: their pods would be counted twice or not at all.
func (r *rollout) refresh(ctx context.Context) error {
	list, err := r.client().AppsV1().ReplicaSets(r.d.Namespace).List(ctx,
		metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(r.d.Spec.Selector)})
	if err != nil {
		return err
	}
	r.sets = r.sets[:0]
	for i := range list.Items {
		if rs := &list.Items[i]; metav1.IsControlledBy(rs, r.d) {
			r.sets = append(r.sets, rs)
		}
	}
	slices.SortFunc(r.sets, olderFirst)
	r.classify()
	return nil
}

// observed reports whether the status of each ReplicaSet reflects its latest spec. Until then a ReplicaSet may
// have more or fewer pods than its spec and status say. Its next status update enqueues the Deployment.
func (r *rollout) observed() bool {
	return !slices.ContainsFunc(r.sets, func(rs *appsv1.ReplicaSet) bool {
		return rs.Status.ObservedGeneration < rs.Generation
	})
}

func (r *rollout) targetSize() int32 {
	if replicasOf(r.current) > desired(r.d) {
		return desired(r.d)
	}
	return r.newReplicas(r.current)
}

// minAvailable returns how many pods must be available.
func (r *rollout) minAvailable() int32 { return desired(r.d) - maxUnavailable(r.d) }

// excess returns by how many pods the old ReplicaSets may be scaled down. Pods of the new ReplicaSet that are
// not available yet count as missing, so that at most maxUnavailable pods are missing whichever old pods are
// deleted.
func (r *rollout) excess() int32 {
	unavailable := max(0, replicasOf(r.current)-r.current.Status.AvailableReplicas)
	return controller.Int32(int(totalReplicas(r.sets...)) - int(r.minAvailable()) - int(unavailable))
}

// shrinkOld scales the old ReplicaSets down, and reports whether it did.
func (r *rollout) shrinkOld(ctx context.Context) (bool, error) {
	if totalReplicas(r.old...) == 0 || r.excess() <= 0 {
		return false, nil
	}
	cleaned, err := r.dropUnhealthy(ctx, r.excess())
	if err != nil {
		return false, err
	}
	// From here on available pods are deleted, as far as they are not needed.
	dropped, err := r.dropOld(ctx, min(r.excess(), r.remainingAvailable()-r.minAvailable()), replicasOf)
	return cleaned || dropped, err
}

// remainingAvailable counts the available pods that stay. A ReplicaSet that was just scaled down may still
// report pods that it is about to delete. To count these would allow more than maxUnavailable pods to be
// missing.
func (r *rollout) remainingAvailable() int32 {
	n := 0
	for _, rs := range r.sets {
		n += int(min(rs.Status.AvailableReplicas, replicasOf(rs)))
	}
	return controller.Int32(n)
}

// dropUnhealthy scales down old pods that are not available. They serve no traffic, and a broken old template
// must not delay the new one.
func (r *rollout) dropUnhealthy(ctx context.Context, limit int32) (bool, error) {
	return r.dropOld(ctx, limit, func(rs *appsv1.ReplicaSet) int32 {
		return replicasOf(rs) - rs.Status.AvailableReplicas
	})
}

// dropOld scales the old ReplicaSets down by at most limit pods, oldest first. share returns the limit for each
// ReplicaSet.
func (r *rollout) dropOld(ctx context.Context, limit int32, share func(*appsv1.ReplicaSet) int32) (bool, error) {
	dropped := false
	for _, rs := range active(r.old) {
		n := min(limit, share(rs))
		if n <= 0 {
			continue
		}
		if err := r.resize(ctx, rs, replicasOf(rs)-n); err != nil {
			return dropped, err
		}
		limit -= n
		dropped = true
	}
	return dropped, nil
}
