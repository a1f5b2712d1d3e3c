package legacytokencleaner

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// referredTo are the names of the Secrets that pods of a namespace refer to.
func (c *cleaner) referredTo(namespace string) (map[string]bool, error) {
	pods, err := c.pods.Pods(namespace).List(labels.Everything())
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for _, pod := range pods {
		ofPod(&pod.Spec, func(name string) { names[name] = true })
	}
	return names, nil
}

func ofPod(spec *corev1.PodSpec, found func(string)) {
	for _, ref := range spec.ImagePullSecrets {
		found(ref.Name)
	}
	for i := range spec.InitContainers {
		ofEnvironment(spec.InitContainers[i].EnvFrom, spec.InitContainers[i].Env, found)
	}
	for i := range spec.Containers {
		ofEnvironment(spec.Containers[i].EnvFrom, spec.Containers[i].Env, found)
	}
	for i := range spec.EphemeralContainers {
		ofEnvironment(spec.EphemeralContainers[i].EnvFrom, spec.EphemeralContainers[i].Env, found)
	}
	for i := range spec.Volumes {
		ofVolume(&spec.Volumes[i].VolumeSource, found)
	}
}

func ofEnvironment(from []corev1.EnvFromSource, env []corev1.EnvVar, found func(string)) {
	for _, e := range from {
		if e.SecretRef != nil {
			found(e.SecretRef.Name)
		}
	}
	for _, e := range env {
		if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
			found(e.ValueFrom.SecretKeyRef.Name)
		}
	}
}

func ofVolume(s *corev1.VolumeSource, found func(string)) {
	reference := func(r *corev1.LocalObjectReference) {
		if r != nil {
			found(r.Name)
		}
	}
	switch {
	case s.Secret != nil:
		found(s.Secret.SecretName)
	case s.Projected != nil:
		for _, p := range s.Projected.Sources {
			if p.Secret != nil {
				found(p.Secret.Name)
			}
		}
	case s.AzureFile != nil:
		found(s.AzureFile.SecretName)
	case s.CephFS != nil:
		reference(s.CephFS.SecretRef)
	case s.Cinder != nil:
		reference(s.Cinder.SecretRef)
	case s.CSI != nil:
		reference(s.CSI.NodePublishSecretRef)
	case s.FlexVolume != nil:
		reference(s.FlexVolume.SecretRef)
	case s.ISCSI != nil:
		reference(s.ISCSI.SecretRef)
	case s.RBD != nil:
		reference(s.RBD.SecretRef)
	case s.ScaleIO != nil:
		reference(s.ScaleIO.SecretRef)
	case s.StorageOS != nil:
		reference(s.StorageOS.SecretRef)
	}
}
