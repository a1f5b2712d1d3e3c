// Package pods implements the decisions of the subresources binding and eviction of a pod: from the objects alone,
// without I/O. binding.go puts a pod on a node; eviction.go checks its disruption budget. The server reads the objects,
// and commits the changed ones.
package pods

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// setCondition sets a condition of a pod. Its time of transition stays if its status does.
func setCondition(pod *corev1.Pod, c corev1.PodCondition) {
	i := slices.IndexFunc(pod.Status.Conditions, func(have corev1.PodCondition) bool { return have.Type == c.Type })
	if i < 0 {
		pod.Status.Conditions = append(pod.Status.Conditions, c)
		return
	}
	if have := pod.Status.Conditions[i]; have.Status == c.Status {
		c.LastTransitionTime = have.LastTransitionTime
	}
	pod.Status.Conditions[i] = c
}
