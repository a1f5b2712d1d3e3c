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

// taintByCondition maps the status of a Node condition to its NoSchedule taint.
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

// managedTaints are the NoSchedule taints that only this controller sets and removes.
var managedTaints = []string{
	corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeMemoryPressure, corev1.TaintNodeDiskPressure,
	corev1.TaintNodePIDPressure, corev1.TaintNodeNetworkUnavailable, corev1.TaintNodeUnschedulable,
}

// taintByConditions sets the NoSchedule taints for a Node's conditions and removes the taints whose condition no longer
// holds. It leaves the taints of a Node that has not posted its status yet as they were created.
func (l *lifecycle) taintByConditions(ctx context.Context, node *corev1.Node) error {
	if condition(node, corev1.NodeReady) == nil && !node.Spec.Unschedulable {
		return nil
	}
	desired := map[string]bool{corev1.TaintNodeUnschedulable: node.Spec.Unschedulable}
	for t, byStatus := range taintByCondition {
		if key, ok := byStatus[statusOf(node, t)]; ok {
			desired[key] = true
		}
	}
	return l.retaint(ctx, node, corev1.TaintEffectNoSchedule, desired)
}

// taintForEviction sets the NoExecute taint on a Node that is not ready, if the state and rate of its zone allow it. It
// removes the taint from a Node that is ready.
func (l *lifecycle) taintForEviction(ctx context.Context, node *corev1.Node, now time.Time) error {
	desired := map[string]bool{}
	switch statusOf(node, corev1.NodeReady) {
	case corev1.ConditionTrue:
	case corev1.ConditionFalse:
		desired[corev1.TaintNodeNotReady] = true
	default:
		desired[corev1.TaintNodeUnreachable] = true
	}
	if len(desired) > 0 {
		if l.disrupted {
			desired = nil // no Node is ready: evicted pods would have no place to run
		} else if !hasEvictionTaint(node) && !l.mayEvict(node) {
			return nil
		}
	}
	err := l.retaint(ctx, node, corev1.TaintEffectNoExecute, desired)
	if err == nil && len(desired) > 0 && !hasEvictionTaint(node) {
		l.metrics.evicted(node)
	}
	return err
}

// hasEvictionTaint reports whether a Node has one of the NoExecute taints that this controller sets.
func hasEvictionTaint(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Effect == corev1.TaintEffectNoExecute &&
			(t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable)
	})
}

// retaint sets the managed taints that have this effect to the desired ones, and keeps all other taints. The patch is
// rejected with a conflict if another client has changed the Node meanwhile.
func (l *lifecycle) retaint(ctx context.Context, node *corev1.Node, effect corev1.TaintEffect,
	desired map[string]bool) error {
	managed := managedTaints
	if effect == corev1.TaintEffectNoExecute {
		managed = []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable}
	}
	var taints []corev1.Taint
	for _, t := range node.Spec.Taints {
		if t.Effect != effect || !slices.Contains(managed, t.Key) || desired[t.Key] {
			taints = append(taints, t)
		}
	}
	now := metav1.NewTime(l.clock.Now())
	for _, key := range managed {
		t := corev1.Taint{Key: key, Effect: effect, TimeAdded: &now}
		if desired[key] && !slices.ContainsFunc(taints, func(old corev1.Taint) bool { return old.MatchTaint(&t) }) {
			taints = append(taints, t)
		}
	}
	if equality.Semantic.DeepEqual(node.Spec.Taints, taints) {
		return nil
	}
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

// podNotReady sets the condition Ready of a pod to False and reports it as an event. A pod that no longer exists is no
// error.
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
