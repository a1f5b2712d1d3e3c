package authz

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// podNames reports whether a pod names an object of its namespace, or is that object.
func podNames(pod *corev1.Pod, resource, name string) bool {
	switch resource {
	case "pods":
		return pod.Name == name
	case "serviceaccounts":
		return pod.Spec.ServiceAccountName == name
	case "secrets":
		return slices.Contains(podSecrets(pod), name)
	case "configmaps":
		return slices.Contains(podConfigMaps(pod), name)
	case "persistentvolumeclaims":
		return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
			return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == name ||
				v.Ephemeral != nil && pod.Name+"-"+v.Name == name
		})
	case "resourceclaims":
		return podClaims(pod, name)
	}
	return false
}

func podClaims(pod *corev1.Pod, name string) bool {
	return slices.ContainsFunc(pod.Spec.ResourceClaims, func(c corev1.PodResourceClaim) bool {
		return c.ResourceClaimName != nil && *c.ResourceClaimName == name
	}) || slices.ContainsFunc(pod.Status.ResourceClaimStatuses, func(c corev1.PodResourceClaimStatus) bool {
		return c.ResourceClaimName != nil && *c.ResourceClaimName == name
	}) || pod.Status.ExtendedResourceClaimStatus != nil &&
		pod.Status.ExtendedResourceClaimStatus.ResourceClaimName == name
}

// eachContainer visits all containers. They share the fields that name other objects.
func eachContainer(pod *corev1.Pod, f func(env []corev1.EnvVar, from []corev1.EnvFromSource)) {
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		f(c.Env, c.EnvFrom)
	}
	for _, c := range pod.Spec.EphemeralContainers {
		f(c.Env, c.EnvFrom)
	}
}

func podSecrets(pod *corev1.Pod) (names []string) {
	for _, s := range pod.Spec.ImagePullSecrets {
		names = append(names, s.Name)
	}
	eachContainer(pod, func(env []corev1.EnvVar, from []corev1.EnvFromSource) {
		for _, e := range env {
			if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
				names = append(names, e.ValueFrom.SecretKeyRef.Name)
			}
		}
		for _, e := range from {
			if e.SecretRef != nil {
				names = append(names, e.SecretRef.Name)
			}
		}
	})
	for i := range pod.Spec.Volumes {
		names = append(names, volumeSourceSecrets(&pod.Spec.Volumes[i].VolumeSource)...)
	}
	return names
}

func volumeSourceSecrets(v *corev1.VolumeSource) (names []string) {
	local := func(ref *corev1.LocalObjectReference) {
		if ref != nil {
			names = append(names, ref.Name)
		}
	}
	switch {
	case v.Secret != nil:
		names = append(names, v.Secret.SecretName)
	case v.Projected != nil:
		for _, s := range v.Projected.Sources {
			if s.Secret != nil {
				names = append(names, s.Secret.Name)
			}
		}
	case v.AzureFile != nil:
		names = append(names, v.AzureFile.SecretName)
	case v.CephFS != nil:
		local(v.CephFS.SecretRef)
	case v.Cinder != nil:
		local(v.Cinder.SecretRef)
	case v.FlexVolume != nil:
		local(v.FlexVolume.SecretRef)
	case v.RBD != nil:
		local(v.RBD.SecretRef)
	case v.ScaleIO != nil:
		local(v.ScaleIO.SecretRef)
	case v.ISCSI != nil:
		local(v.ISCSI.SecretRef)
	case v.StorageOS != nil:
		local(v.StorageOS.SecretRef)
	case v.CSI != nil:
		local(v.CSI.NodePublishSecretRef)
	}
	return names
}

func podConfigMaps(pod *corev1.Pod) (names []string) {
	eachContainer(pod, func(env []corev1.EnvVar, from []corev1.EnvFromSource) {
		for _, e := range env {
			if e.ValueFrom != nil && e.ValueFrom.ConfigMapKeyRef != nil {
				names = append(names, e.ValueFrom.ConfigMapKeyRef.Name)
			}
		}
		for _, e := range from {
			if e.ConfigMapRef != nil {
				names = append(names, e.ConfigMapRef.Name)
			}
		}
	})
	for _, v := range pod.Spec.Volumes {
		if v.ConfigMap != nil {
			names = append(names, v.ConfigMap.Name)
		}
		if v.Projected == nil {
			continue
		}
		for _, s := range v.Projected.Sources {
			if s.ConfigMap != nil {
				names = append(names, s.ConfigMap.Name)
			}
		}
	}
	return names
}

// volumeSecrets returns the secrets that a node needs to mount a volume. The default of a secret's namespace is the
// claim's.
func volumeSecrets(pv *corev1.PersistentVolume) (refs []corev1.SecretReference) {
	in := func(namespace, name string) {
		if namespace == "" && pv.Spec.ClaimRef != nil {
			namespace = pv.Spec.ClaimRef.Namespace
		}
		refs = append(refs, corev1.SecretReference{Namespace: namespace, Name: name})
	}
	ref := func(r *corev1.SecretReference) {
		if r != nil {
			in(r.Namespace, r.Name)
		}
	}
	switch v := &pv.Spec.PersistentVolumeSource; {
	case v.AzureFile != nil:
		namespace := ""
		if v.AzureFile.SecretNamespace != nil {
			namespace = *v.AzureFile.SecretNamespace
		}
		in(namespace, v.AzureFile.SecretName)
	case v.CephFS != nil:
		ref(v.CephFS.SecretRef)
	case v.Cinder != nil:
		ref(v.Cinder.SecretRef)
	case v.FlexVolume != nil:
		ref(v.FlexVolume.SecretRef)
	case v.RBD != nil:
		ref(v.RBD.SecretRef)
	case v.ScaleIO != nil:
		ref(v.ScaleIO.SecretRef)
	case v.ISCSI != nil:
		ref(v.ISCSI.SecretRef)
	case v.StorageOS != nil:
		if r := v.StorageOS.SecretRef; r != nil {
			in(r.Namespace, r.Name)
		}
	case v.CSI != nil:
		ref(v.CSI.ControllerPublishSecretRef)
		ref(v.CSI.NodePublishSecretRef)
		ref(v.CSI.NodeStageSecretRef)
		ref(v.CSI.ControllerExpandSecretRef)
		ref(v.CSI.NodeExpandSecretRef)
	}
	return refs
}
