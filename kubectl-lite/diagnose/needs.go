package diagnose

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// Need is an object in a pod's namespace without which the pod does not start.
type Need struct{ Kind, Name string }

// NeedsOf lists the claims, resource claims, ConfigMaps and Secrets that a pod cannot start without, each once.
func NeedsOf(pod *corev1.Pod) (all []Need) {
	add := func(kind, name string, optional *bool) {
		if n := (Need{kind, name}); name != "" && !ptr.Deref(optional, false) && !slices.Contains(all, n) {
			all = append(all, n)
		}
	}
	for _, v := range pod.Spec.Volumes {
		switch {
		case v.PersistentVolumeClaim != nil:
			add("PersistentVolumeClaim", v.PersistentVolumeClaim.ClaimName, nil)
		case v.Ephemeral != nil:
			add("PersistentVolumeClaim", pod.Name+"-"+v.Name, nil)
		case v.ConfigMap != nil:
			add("ConfigMap", v.ConfigMap.Name, v.ConfigMap.Optional)
		case v.Secret != nil:
			add("Secret", v.Secret.SecretName, v.Secret.Optional)
		case v.Projected != nil:
			for _, source := range v.Projected.Sources {
				if source.ConfigMap != nil {
					add("ConfigMap", source.ConfigMap.Name, source.ConfigMap.Optional)
				}
				if source.Secret != nil {
					add("Secret", source.Secret.Name, source.Secret.Optional)
				}
			}
		}
	}
	for _, c := range pod.Spec.ResourceClaims {
		add("ResourceClaim", ptr.Deref(c.ResourceClaimName, ""), nil)
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, from := range c.EnvFrom {
			if from.ConfigMapRef != nil {
				add("ConfigMap", from.ConfigMapRef.Name, from.ConfigMapRef.Optional)
			}
			if from.SecretRef != nil {
				add("Secret", from.SecretRef.Name, from.SecretRef.Optional)
			}
		}
		for _, env := range c.Env {
			if env.ValueFrom == nil {
				continue
			}
			if ref := env.ValueFrom.ConfigMapKeyRef; ref != nil {
				add("ConfigMap", ref.Name, ref.Optional)
			}
			if ref := env.ValueFrom.SecretKeyRef; ref != nil {
				add("Secret", ref.Name, ref.Optional)
			}
		}
	}
	return all
}

// PodReady reports whether a pod has the condition Ready.
func PodReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}
