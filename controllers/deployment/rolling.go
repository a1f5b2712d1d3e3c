package deployment

import (
	"context"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// roll takes one step of a rolling update: the new ReplicaSet grows as far as maxSurge
// lets it, or else the old ones shrink as far as maxUnavailable lets them.
func (r *rollout) roll(ctx context.Context) error {
	if r.settled() && r.moves() {
		if err := r.refresh(ctx); err != nil {
			return err
		}
	}
	if !r.settled() {
		return r.updateProgress(ctx)
	}
	if r.current == nil {
		// A new ReplicaSet is created as large as it may be.
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

// moves reports whether pods are to be made or taken away.
func (r *rollout) moves() bool {
	return r.current == nil || r.targetSize() != replicasOf(r.current) || wanted(r.old...) > 0 && r.excess() > 0
}

// refresh reads the ReplicaSets from the API server. The cache may not have shown those that were made or resized a
// moment ago, for another template: their pods would be counted twice, or not at all.
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

// settled reports whether the status of each ReplicaSet reflects the size that it was last given. Until
// then it may have more or fewer pods than its size and status show, and its next status wakes us.
func (r *rollout) settled() bool {
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

// least is how many pods must be available.
func (r *rollout) least() int32 { return desired(r.d) - maxUnavailable(r.d) }

// excess is how many pods the old ReplicaSets may lose. Pods that the new one has been asked for
// and that are not available yet count as missing: with them subtracted, no more than
// maxUnavailable can be missing whatever the old ones still have.
func (r *rollout) excess() int32 {
	notYet := max(0, replicasOf(r.current)-r.current.Status.AvailableReplicas)
	return controller.Int32(int(wanted(r.sets...)) - int(r.least()) - int(notYet))
}

// shrinkOld scales the old ReplicaSets down, and reports whether it did.
func (r *rollout) shrinkOld(ctx context.Context) (bool, error) {
	if wanted(r.old...) == 0 || r.excess() <= 0 {
		return false, nil
	}
	cleaned, err := r.dropUnhealthy(ctx, r.excess())
	if err != nil {
		return false, err
	}
	// Only pods that are available may be taken away beyond this point, and only those
	// that are not needed.
	dropped, err := r.dropOld(ctx, min(r.excess(), r.surelyAvailable()-r.least()), func(rs *appsv1.ReplicaSet) int32 {
		return replicasOf(rs)
	})
	return cleaned || dropped, err
}

// surelyAvailable counts the available pods that stay so. A ReplicaSet that has just been
// scaled down still counts pods that it is about to delete; counting those would let
// more go than may be missing.
func (r *rollout) surelyAvailable() int32 {
	n := 0
	for _, rs := range r.sets {
		n += int(min(rs.Status.AvailableReplicas, replicasOf(rs)))
	}
	return controller.Int32(n)
}

// dropUnhealthy takes away old pods that are not available first: nobody will miss them,
// and a broken old template must not hold up the new one.
func (r *rollout) dropUnhealthy(ctx context.Context, most int32) (bool, error) {
	return r.dropOld(ctx, most, func(rs *appsv1.ReplicaSet) int32 {
		return replicasOf(rs) - rs.Status.AvailableReplicas
	})
}

// dropOld takes at most `most` pods from the old ReplicaSets, oldest first, and no more from
// each than `of` returns.
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
