package deployment

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
)

// roll takes one step of a rolling update: the new ReplicaSet grows as far as maxSurge
// lets it, or else the old ones shrink as far as maxUnavailable lets them.
func (r *rollout) roll(ctx context.Context) error {
	if r.current == nil {
		// What was just created is already as large as it may be.
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
	shrunk, err := r.shrinkOld(ctx)
	if err != nil {
		return err
	}
	if !shrunk && complete(r.d, r.d.Status) {
		if err := r.cleanUp(ctx); err != nil {
			return err
		}
	}
	return r.updateProgress(ctx)
}

func (r *rollout) targetSize() int32 {
	if replicasOf(r.current) > desired(r.d) {
		return desired(r.d)
	}
	return r.newReplicas(r.current)
}

// shrinkOld scales the old ReplicaSets down, and reports whether it did.
//
// Pods that the new ReplicaSet has been asked for and that are not available yet count as
// missing: with them subtracted, no more than maxUnavailable can be missing whatever the
// old ones still have.
func (r *rollout) shrinkOld(ctx context.Context) (bool, error) {
	if wanted(r.old...) == 0 {
		return false, nil
	}
	notYet := max(0, replicasOf(r.current)-r.current.Status.AvailableReplicas)
	least := desired(r.d) - maxUnavailable(r.d)
	excess := func() int32 { return wanted(r.sets...) - least - notYet }
	if excess() <= 0 {
		return false, nil
	}
	cleaned, err := r.dropUnhealthy(ctx, excess())
	if err != nil {
		return false, err
	}
	// Only pods that are available may be taken away beyond this point, and only those
	// that are not needed.
	dropped, err := r.dropOld(ctx, min(excess(), r.surelyAvailable()-least), func(rs *appsv1.ReplicaSet) int32 {
		return replicasOf(rs)
	})
	return cleaned || dropped, err
}

// surelyAvailable counts the available pods that stay so. A ReplicaSet that has just been
// scaled down still tells of pods that it is about to delete; counting those would let
// more go than may be missing.
func (r *rollout) surelyAvailable() (n int32) {
	for _, rs := range r.sets {
		n += min(rs.Status.AvailableReplicas, replicasOf(rs))
	}
	return n
}

// dropUnhealthy takes away old pods that are not available first: nobody will miss them,
// and a broken old template must not hold up the new one.
func (r *rollout) dropUnhealthy(ctx context.Context, most int32) (bool, error) {
	return r.dropOld(ctx, most, func(rs *appsv1.ReplicaSet) int32 {
		return replicasOf(rs) - rs.Status.AvailableReplicas
	})
}

// dropOld takes at most `most` pods from the old ReplicaSets, oldest first, and no more from
// each than `of` says.
func (r *rollout) dropOld(ctx context.Context, most int32, of func(*appsv1.ReplicaSet) int32) (bool, error) {
	dropped := false
	for _, rs := range active(r.old) {
		n := min(most, of(rs))
		if n <= 0 {
			continue
		}
		if err := r.resize(ctx, rs, replicasOf(rs)-n); err != nil {
			return dropped, err
		}
		most -= n
		dropped = true
	}
	return dropped, nil
}
