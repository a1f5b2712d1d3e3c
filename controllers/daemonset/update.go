package daemonset

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

func (s *sync) isCurrent(pod *corev1.Pod) bool { return pod.Labels[hashLabel] == s.hash }

// available reports whether a pod has been ready for minReadySeconds. It enqueues the set for the time when a
// ready pod becomes available.
func (s *sync) available(pod *corev1.Pod) bool {
	ok, from := controller.PodAvailable(pod, s.set.Spec.MinReadySeconds, s.now)
	if !from.IsZero() {
		s.EnqueueAt(s.key, from)
	}
	return ok && pod.DeletionTimestamp == nil
}

func (s *sync) maxSurge() int {
	return s.budget(func(r *appsv1.RollingUpdateDaemonSet) *intstr.IntOrString { return r.MaxSurge })
}
func (s *sync) maxUnavailable() int {
	return s.budget(func(r *appsv1.RollingUpdateDaemonSet) *intstr.IntOrString { return r.MaxUnavailable })
}

// budget returns maxSurge or maxUnavailable in pods. A percentage refers to the Nodes that should have a pod,
// and is rounded up.
func (s *sync) budget(field func(*appsv1.RollingUpdateDaemonSet) *intstr.IntOrString) int {
	strategy := s.set.Spec.UpdateStrategy
	if strategy.Type != appsv1.RollingUpdateDaemonSetStrategyType || strategy.RollingUpdate == nil ||
		field(strategy.RollingUpdate) == nil {
		return 0
	}
	desired := 0
	for _, node := range s.nodes {
		if run, _ := s.suits(node); run {
			desired++
		}
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(field(strategy.RollingUpdate), desired, true)
	if err != nil {
		return 0
	}
	return n
}

// roll replaces pods of earlier templates as far as the budget allows. Without maxSurge the old pod is deleted
// first. With it the new pod is created first, and scale deletes the old one when the new one is available.
func (s *sync) roll(ctx context.Context) error {
	if s.set.Spec.UpdateStrategy.Type != appsv1.RollingUpdateDaemonSetStrategyType {
		return nil
	}
	if s.maxSurge() > 0 {
		return s.rollBySurge(ctx)
	}
	budget := s.maxUnavailable()
	var broken, working []*corev1.Pod
	for _, node := range s.nodes {
		run, _ := s.suits(node)
		if !run {
			continue
		}
		var alive *corev1.Pod
		for _, pod := range s.byNode[node.Name] {
			if pod.DeletionTimestamp == nil && !controller.PodEnded(pod) {
				alive = pod
			}
		}
		switch {
		case alive == nil:
			budget--
		case !s.available(alive):
			budget--
			if !s.isCurrent(alive) {
				broken = append(broken, alive) // it is unavailable anyway
			}
		case !s.isCurrent(alive):
			working = append(working, alive)
		}
	}
	return s.delete(ctx, append(broken, working[:max(0, min(budget, len(working)))]...))
}

func (s *sync) rollBySurge(ctx context.Context) error {
	budget := s.maxSurge()
	var working []string // Nodes that can get a new pod beside the available old one
	var broken []string
	for _, node := range s.nodes {
		run, _ := s.suits(node)
		if !run {
			continue
		}
		var old, next *corev1.Pod
		for _, pod := range s.byNode[node.Name] {
			switch {
			case controller.PodEnded(pod):
			case s.isCurrent(pod):
				next = pod
			case pod.DeletionTimestamp == nil:
				old = pod
			}
		}
		switch {
		case old == nil:
		case next != nil:
			budget--
		case !s.available(old):
			broken = append(broken, node.Name)
		default:
			working = append(working, node.Name)
		}
	}
	return s.create(ctx, append(broken, working[:max(0, min(budget, len(working)))]...))
}
