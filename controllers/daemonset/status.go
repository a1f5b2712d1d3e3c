package daemonset

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers/controller"
)

// updateStatus writes the status if it differs from the one in the cache.
func (l *look) updateStatus(ctx context.Context, cached *appsv1.DaemonSet) error {
	l.count()
	if equality.Semantic.DeepEqual(cached.Status, l.set.Status) {
		return nil
	}
	updated, err := l.client.AppsV1().DaemonSets(l.set.Namespace).UpdateStatus(ctx, l.set, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	l.written.Note(l.key, l.informer, updated.ResourceVersion)
	return nil
}

// count counts Nodes, not pods: of those with several pods the oldest speaks, as long as there
// is one, and with it one of the new template for being updated.
func (l *look) count() {
	s := &l.set.Status
	*s = appsv1.DaemonSetStatus{ObservedGeneration: l.set.Generation, CollisionCount: s.CollisionCount, Conditions: s.Conditions}
	for _, node := range l.nodes {
		run, _ := l.suits(node)
		var here []*corev1.Pod
		for _, pod := range l.byNode[node.Name] {
			if !controller.PodEnded(pod) {
				here = append(here, pod)
			}
		}
		switch {
		case !run && len(here) > 0:
			s.NumberMisscheduled++
			continue
		case !run:
			continue
		}
		s.DesiredNumberScheduled++
		if len(here) == 0 {
			continue
		}
		s.CurrentNumberScheduled++
		ready, available, updated := false, false, false
		for _, pod := range here {
			ready = ready || controller.PodReady(pod)
			available = available || l.available(pod)
			updated = updated || l.isCurrent(pod)
		}
		for counter, is := range map[*int32]bool{&s.NumberReady: ready, &s.NumberAvailable: available, &s.UpdatedNumberScheduled: updated} {
			if is {
				*counter++
			}
		}
	}
	s.NumberUnavailable = s.DesiredNumberScheduled - s.NumberAvailable
}
