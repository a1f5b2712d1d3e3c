package daemonset

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/coxswain-dev/coxswain/controllers/controller"
)

func (l *look) isCurrent(pod *corev1.Pod) bool { return pod.Labels[hashLabel] == l.hash }

// available says whether a pod has been ready for minReadySeconds, and comes back when one that is ready will have been.
func (l *look) available(pod *corev1.Pod) bool {
	ok, wait := controller.PodAvailable(pod, l.set.Spec.MinReadySeconds, l.now)
	if wait > 0 {
		l.EnqueueAfter(l.key, wait)
	}
	return ok && pod.DeletionTimestamp == nil
}

func (l *look) maxSurge() int {
	return l.budget(func(r *appsv1.RollingUpdateDaemonSet) *intstr.IntOrString { return r.MaxSurge })
}
func (l *look) maxUnavailable() int {
	return l.budget(func(r *appsv1.RollingUpdateDaemonSet) *intstr.IntOrString { return r.MaxUnavailable })
}

// budget is one of the strategy's two, in pods; percentages are of the Nodes that should have one, rounded up.
func (l *look) budget(of func(*appsv1.RollingUpdateDaemonSet) *intstr.IntOrString) int {
	s := l.set.Spec.UpdateStrategy
	if s.Type != appsv1.RollingUpdateDaemonSetStrategyType || s.RollingUpdate == nil || of(s.RollingUpdate) == nil {
		return 0
	}
	wanted := 0
	for _, node := range l.nodes {
		if run, _ := l.suits(node); run {
			wanted++
		}
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(of(s.RollingUpdate), wanted, true)
	if err != nil {
		return 0
	}
	return n
}

// roll replaces pods of earlier templates as far as the budget lets it. Without surge the old pod goes
// first; with it the new one comes first, and scale takes the old one away when the new one is available.
func (l *look) roll(ctx context.Context) error {
	if l.set.Spec.UpdateStrategy.Type != appsv1.RollingUpdateDaemonSetStrategyType {
		return nil
	}
	if l.maxSurge() > 0 {
		return l.rollBySurge(ctx)
	}
	budget := l.maxUnavailable()
	var broken, working []*corev1.Pod
	for _, node := range l.nodes {
		run, _ := l.suits(node)
		if !run {
			continue
		}
		var alive *corev1.Pod
		for _, pod := range l.byNode[node.Name] {
			if pod.DeletionTimestamp == nil && !controller.PodEnded(pod) {
				alive = pod
			}
		}
		switch {
		case alive == nil:
			budget--
		case !l.available(alive):
			budget--
			if !l.isCurrent(alive) {
				broken = append(broken, alive) // nothing is lost with it
			}
		case !l.isCurrent(alive):
			working = append(working, alive)
		}
	}
	return l.delete(ctx, append(broken, working[:max(0, min(budget, len(working)))]...))
}

func (l *look) rollBySurge(ctx context.Context) error {
	budget := l.maxSurge()
	var at []string // Nodes to get a new pod beside the old one
	var broken []string
	for _, node := range l.nodes {
		run, _ := l.suits(node)
		if !run {
			continue
		}
		var old, next *corev1.Pod
		for _, pod := range l.byNode[node.Name] {
			switch {
			case controller.PodEnded(pod):
			case l.isCurrent(pod):
				next = pod
			case pod.DeletionTimestamp == nil:
				old = pod
			}
		}
		switch {
		case old == nil:
		case next != nil:
			budget--
		case !l.available(old):
			broken = append(broken, node.Name)
		default:
			at = append(at, node.Name)
		}
	}
	return l.create(ctx, append(broken, at[:max(0, min(budget, len(at)))]...))
}
