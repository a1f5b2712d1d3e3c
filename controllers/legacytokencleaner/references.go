package legacytokencleaner

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// referredTo returns the names of the Secrets that the pods of a namespace use.
func (c *cleaner) referredTo(namespace string) (map[string]bool, error) {
	pods, err := c.pods.Pods(namespace).List(labels.Everything())
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for _, pod := range pods {
		visitPod(&pod.Spec, func(name string) { names[name] = true })
	}
	return names, nil
}

func visitPod(spec *corev1.PodSpec, visit func(string)) {
	for _, ref := range spec.ImagePullSecrets {
		visit(ref.Name)
	}
	for i := range spec.InitContainers {
		visitEnvironment(spec.InitContainers[i].EnvFrom, spec.InitContainers[i].Env, visit)
	}
	for i := range spec.Containers {
		visitEnvironment(spec.Containers[i].EnvFrom, spec.Containers[i].Env, visit)
	}
	for i := range spec.EphemeralContainers {
		visitEnvironment(spec.EphemeralContainers[i].EnvFrom, spec.EphemeralContainers[i].Env, visit)
	}
	for i := range spec.Volumes {
		visitVolume(&spec.Volumes[i].VolumeSource, visit)
	}
}

func visitEnvironment(from []corev1.EnvFromSource, env []corev1.EnvVar, visit func(string)) {
	for _, e := range from {
		if e.SecretRef != nil {
			visit(e.SecretRef.Name)
		}
	}
	for _, e := range env {
		if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
			visit(e.ValueFrom.SecretKeyRef.Name)
		}
	}
}

func visitVolume(s *corev1.VolumeSource, visit func(string)) {
	reference := func(r *corev1.LocalObjectReference) {
		if r != nil {
			visit(r.Name)
		}
	}
	switch {
	case s.Secret != nil:
		visit(s.Secret.SecretName)
	case s.Projected != nil:
		for _, p := range s.Projected.Sources {
			if p.Secret != nil {
				visit(p.Secret.Name)
			}
		}
	case s.AzureFile != nil:
		visit(s.AzureFile.SecretName)
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
