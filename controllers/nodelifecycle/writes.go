package nodelifecycle

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// taintByCondition are the NoSchedule taints that stand for conditions.
// https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/#taint-nodes-by-condition
var taintByCondition = map[corev1.NodeConditionType]map[corev1.ConditionStatus]string{
	corev1.NodeReady: {
		corev1.ConditionFalse:   corev1.TaintNodeNotReady,
		corev1.ConditionUnknown: corev1.TaintNodeUnreachable,
	},
	corev1.NodeMemoryPressure:     {corev1.ConditionTrue: corev1.TaintNodeMemoryPressure},
	corev1.NodeDiskPressure:       {corev1.ConditionTrue: corev1.TaintNodeDiskPressure},
	corev1.NodePIDPressure:        {corev1.ConditionTrue: corev1.TaintNodePIDPressure},
	corev1.NodeNetworkUnavailable: {corev1.ConditionTrue: corev1.TaintNodeNetworkUnavailable},
}

// ours are the NoSchedule taints that nobody else is to set or take away.
var ours = []string{
	corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeMemoryPressure, corev1.TaintNodeDiskPressure,
	corev1.TaintNodePIDPressure, corev1.TaintNodeNetworkUnavailable, corev1.TaintNodeUnschedulable,
}

// taintByConditions gives a Node the NoSchedule taints of its conditions, and takes away those
// of conditions that have passed. A Node that has not reported yet is left as it was made.
func (l *lifecycle) taintByConditions(ctx context.Context, node *corev1.Node) error {
	if condition(node, corev1.NodeReady) == nil && !node.Spec.Unschedulable {
		return nil
	}
	wanted := map[string]bool{corev1.TaintNodeUnschedulable: node.Spec.Unschedulable}
	for t, byStatus := range taintByCondition {
		if key, ok := byStatus[statusOf(node, t)]; ok {
			wanted[key] = true
		}
	}
	return l.retaint(ctx, node, corev1.TaintEffectNoSchedule, wanted)
}

// taintForEviction gives up a Node that is not ready, when the state of its zone allows it, and
// takes that back from one that is ready.
func (l *lifecycle) taintForEviction(ctx context.Context, node *corev1.Node, now time.Time) error {
	wanted := map[string]bool{}
	switch statusOf(node, corev1.NodeReady) {
	case corev1.ConditionTrue:
	case corev1.ConditionFalse:
		wanted[corev1.TaintNodeNotReady] = true
	default:
		wanted[corev1.TaintNodeUnreachable] = true
	}
	if len(wanted) > 0 {
		if l.disrupted {
			wanted = nil // nobody leaves where there is nowhere to go
		} else if given := givenUp(node); !given && !l.mayGiveUp(node) {
			return nil
		}
	}
	return l.retaint(ctx, node, corev1.TaintEffectNoExecute, wanted)
}

func givenUp(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Effect == corev1.TaintEffectNoExecute &&
			(t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable)
	})
}

// retaint makes those of our taints that have the effect the wanted ones, and leaves others be.
func (l *lifecycle) retaint(ctx context.Context, node *corev1.Node, effect corev1.TaintEffect,
	wanted map[string]bool) error {
	mine := ours
	if effect == corev1.TaintEffectNoExecute {
		mine = []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable}
	}
	var taints []corev1.Taint
	for _, t := range node.Spec.Taints {
		if t.Effect != effect || !slices.Contains(mine, t.Key) || wanted[t.Key] {
			taints = append(taints, t)
		}
	}
	now := metav1.NewTime(l.clock.Now())
	for _, key := range mine {
		t := corev1.Taint{Key: key, Effect: effect, TimeAdded: &now}
		if wanted[key] && !slices.ContainsFunc(taints, func(have corev1.Taint) bool { return have.MatchTaint(&t) }) {
			taints = append(taints, t)
		}
	}
	if equality.Semantic.DeepEqual(node.Spec.Taints, taints) {
		return nil
	}
	// The version makes it a conflict if somebody else has changed the taints meanwhile.
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID, "resourceVersion": node.ResourceVersion},
		"spec":     map[string]any{"taints": taints},
	})
	if err != nil {
		return err
	}
	_, err = l.client().CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

func (l *lifecycle) podNotReady(ctx context.Context, pod *corev1.Pod) error {
	updated := pod.DeepCopy()
	ready := controller.PodCondition(updated, corev1.PodReady)
	ready.Status, ready.LastTransitionTime = corev1.ConditionFalse, metav1.NewTime(l.clock.Now())
	_, err := l.client().CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, updated, metav1.UpdateOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	}
	l.recorder.Event(pod, corev1.EventTypeWarning, "NodeNotReady", "Node is not ready")
	return nil
}
