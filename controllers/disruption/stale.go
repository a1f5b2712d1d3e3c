package disruption

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// A client that is about to delete a pod first sets the condition DisruptionTarget. If the deletion does not
// follow, the condition would stay and mislead Jobs, so it is set to False after this time.
// https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
const staleAfter = 2 * time.Minute

// podKey is the prefix of pods' keys. Namespaces contain no colon.
const podKey = "pod:"

// target returns the pod's condition DisruptionTarget if it may become stale, otherwise nil. A kubelet's may
// not, because the kubelet may take its time, nor may the one of a pod that is being deleted or has ended.
func target(pod *corev1.Pod) *corev1.PodCondition {
	c := controller.PodCondition(pod, corev1.DisruptionTarget)
	if c == nil || c.Status != corev1.ConditionTrue || c.Reason == corev1.PodReasonTerminationByKubelet ||
		!controller.PodActive(pod) {
		return nil
	}
	return c
}

// watchTarget enqueues the pod for the time when its condition becomes stale.
func (b *budgets) watchTarget(pod *corev1.Pod) {
	if c := target(pod); c != nil {
		b.EnqueueAt(podKey+controller.KeyOf(pod), c.LastTransitionTime.Add(staleAfter))
	}
}

func (b *budgets) reconcilePod(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(strings.TrimPrefix(key, podKey))
	if err != nil {
		return nil // not a key of this controller
	}
	pod, err := b.pods.Pods(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	c := target(pod)
	if c == nil {
		return nil
	}
	if end := c.LastTransitionTime.Add(staleAfter); end.After(b.clock.Now()) {
		b.EnqueueAt(key, end)
		return nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID, "resourceVersion": pod.ResourceVersion},
		"status": map[string]any{"conditions": []any{map[string]any{
			"type": corev1.DisruptionTarget, "status": corev1.ConditionFalse,
			"lastTransitionTime": metav1.NewTime(b.clock.Now()),
		}}},
	})
	if err != nil {
		return err
	}
	_, err = b.client().CoreV1().Pods(namespace).Patch(ctx, name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status")
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("clear DisruptionTarget of pod %s: %w", controller.KeyOf(pod), err)
	}
	return nil
}
