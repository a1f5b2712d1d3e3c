package deployment

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// recreate waits for every old pod to end before it creates the first new one.
func (r *rollout) recreate(ctx context.Context) error {
	if inUse := active(r.old); len(inUse) > 0 {
		for _, rs := range inUse {
			if err := r.resize(ctx, rs, 0); err != nil {
				return err
			}
		}
		return r.updateProgress(ctx)
	}
	running, err := r.oldPodsRun()
	if err != nil {
		return err
	}
	if running {
		return r.updateProgress(ctx)
	}
	if r.current == nil {
		if err := r.createCurrent(ctx); err != nil {
			return err
		}
	}
	if err := r.resize(ctx, r.current, desired(r.d)); err != nil {
		return err
	}
	if complete(r.d, r.d.Status) {
		if err := r.cleanUp(ctx); err != nil {
			return err
		}
	}
	return r.updateProgress(ctx)
}

// oldPodsRun reports whether an old pod still runs. It looks at the pods, because a ReplicaSet's status does
// not count pods that are being deleted: their containers run until the node has stopped them.
func (r *rollout) oldPodsRun() (bool, error) {
	if sum(r.old, running) > 0 {
		return true, nil
	}
	for _, rs := range r.old {
		pods, err := controller.OwnedOrOrphaned[*corev1.Pod](r.pods, rs)
		if err != nil {
			return false, err
		}
		for _, pod := range pods {
			if metav1.IsControlledBy(pod, rs) && !controller.PodEnded(pod) {
				return true, nil
			}
		}
	}
	return false, nil
}
