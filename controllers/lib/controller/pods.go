package controller

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

// nodeIndex indexes pods by the name of their Node.
const nodeIndex = "nodeName"

// IndexByNode adds the index for OnNode to the pods' informer. It must be called before the informer starts;
// calling it again has no effect.
func IndexByNode(pods cache.SharedIndexInformer) error {
	return index(pods, nodeIndex, func(pod *corev1.Pod) []string {
		if pod.Spec.NodeName == "" {
			return nil
		}
		return []string{pod.Spec.NodeName}
	})
}

// OnNode returns the pods on a Node, ended ones included.
func OnNode(pods cache.SharedIndexInformer, node string) ([]*corev1.Pod, error) {
	return indexed[*corev1.Pod](pods, nodeIndex, node)
}

// PodCondition returns the pod's condition of a type, or nil.
func PodCondition(pod *corev1.Pod, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == t {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// PodReady reports whether the pod's condition Ready is true.
func PodReady(pod *corev1.Pod) bool {
	c := PodCondition(pod, corev1.PodReady)
	return c != nil && c.Status == corev1.ConditionTrue
}

// PodActive reports whether the pod has neither ended nor is being deleted.
func PodActive(pod *corev1.Pod) bool {
	return !PodEnded(pod) && pod.DeletionTimestamp == nil
}

// PodTerminating reports whether the pod is being deleted and has not ended yet.
func PodTerminating(pod *corev1.Pod) bool {
	return !PodEnded(pod) && pod.DeletionTimestamp != nil
}

// PodEnded reports whether no container of the pod will ever run again.
func PodEnded(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// PodAvailable reports whether the pod has been ready for minReadySeconds at now. If the pod is ready, but not
// for long enough, from is the time when it becomes available; otherwise from is zero.
func PodAvailable(pod *corev1.Pod, minReadySeconds int32, now time.Time) (available bool, from time.Time) {
	c := PodCondition(pod, corev1.PodReady)
	if c == nil || c.Status != corev1.ConditionTrue {
		return false, time.Time{}
	}
	if minReadySeconds == 0 {
		return true, time.Time{}
	}
	if c.LastTransitionTime.IsZero() {
		return false, time.Time{}
	}
	if from = c.LastTransitionTime.Add(time.Duration(minReadySeconds) * time.Second); from.After(now) {
		return false, from
	}
	return true, time.Time{}
}
