package admission

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// taintNodesByCondition keeps pods away from a new node until its condition is known.
type taintNodesByCondition struct{}

func newTaintNodesByCondition(*Env) (Plugin, error) { return taintNodesByCondition{}, nil }

func (taintNodesByCondition) Mutate(_ context.Context, a *Attributes) error {
	node := a.Object.(*corev1.Node)
	taint := corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}
	if !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&taint) }) {
		node.Spec.Taints = append(node.Spec.Taints, taint)
	}
	return nil
}
