package controller

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/ephemeral"
)

// pvcIndex indexes pods by the PersistentVolumeClaims that they use.
const pvcIndex = "pvc"

// IndexByPVC adds the index for PodsUsingPVC to the pods' informer. It must be called before the informer
// starts; calling it again has no effect.
func IndexByPVC(pods cache.SharedIndexInformer) error {
	return index(pods, pvcIndex, func(pod *corev1.Pod) (keys []string) {
		for i := range pod.Spec.Volumes {
			if name := PVCName(pod, &pod.Spec.Volumes[i]); name != "" {
				keys = append(keys, pod.Namespace+"/"+name)
			}
		}
		return keys
	})
}

// PodsUsingPVC returns the pods that use a claim, ended ones included.
func PodsUsingPVC(pods cache.SharedIndexInformer, namespace, name string) ([]*corev1.Pod, error) {
	return indexed[*corev1.Pod](pods, pvcIndex, namespace+"/"+name)
}

// PVCName returns the name of the claim that a pod's volume uses, or "". The claim of an ephemeral volume may
// not exist yet, or belong to another object.
func PVCName(pod *corev1.Pod, v *corev1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return ephemeral.VolumeClaimName(pod, v)
	}
	return ""
}
