package admission

import (
	"fmt"
	"iter"

	corev1 "k8s.io/api/core/v1"
)

// reference is one mention of another object in a pod's spec.
type reference struct {
	kind, name string // a resource: secrets, configmaps, persistentvolumeclaims, clustertrustbundles
	where      string // for error messages
	pull       bool   // it is an imagePullSecret
	ephemeral  bool   // an ephemeral container refers to it
}

// podReferences yields the objects that a pod refers to by name.
func podReferences(pod *corev1.Pod) iter.Seq[reference] {
	return func(yield func(reference) bool) {
		for _, pull := range pod.Spec.ImagePullSecrets {
			if !yield(reference{kind: "secrets", name: pull.Name, pull: true}) {
				return
			}
		}
		for i := range pod.Spec.Volumes {
			if !volumeReferences(&pod.Spec.Volumes[i], yield) {
				return
			}
		}
		for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
			for _, c := range containers {
				if !containerReferences(c.Name, c.Env, c.EnvFrom, false, yield) {
					return
				}
			}
		}
		for _, c := range pod.Spec.EphemeralContainers {
			if !containerReferences(c.Name, c.Env, c.EnvFrom, true, yield) {
				return
			}
		}
	}
}

func containerReferences(container string, env []corev1.EnvVar, from []corev1.EnvFromSource, ephemeral bool,
	yield func(reference) bool) bool {
	for _, e := range env {
		switch {
		case e.ValueFrom == nil:
		case e.ValueFrom.SecretKeyRef != nil:
			name := e.ValueFrom.SecretKeyRef.Name
			if !yield(reference{kind: "secrets", name: name, ephemeral: ephemeral,
				where: fmt.Sprintf("container %s with envVar %s referencing secret.secretName=%q", container,
					e.Name, name)}) {
				return false
			}
		case e.ValueFrom.ConfigMapKeyRef != nil:
			if !yield(reference{kind: "configmaps", name: e.ValueFrom.ConfigMapKeyRef.Name, ephemeral: ephemeral}) {
				return false
			}
		}
	}
	for _, f := range from {
		if f.SecretRef != nil && !yield(reference{kind: "secrets", name: f.SecretRef.Name, ephemeral: ephemeral,
			where: fmt.Sprintf("container %s with envFrom referencing secret.secretName=%q", container,
				f.SecretRef.Name)}) {
			return false
		}
		if f.ConfigMapRef != nil &&
			!yield(reference{kind: "configmaps", name: f.ConfigMapRef.Name, ephemeral: ephemeral}) {
			return false
		}
	}
	return true
}

func volumeReferences(v *corev1.Volume, yield func(reference) bool) bool {
	secret := func(name string) bool {
		return yield(reference{kind: "secrets", name: name,
			where: fmt.Sprintf("volume with secret.secretName=%q", name)})
	}
	local := func(ref *corev1.LocalObjectReference) bool { return ref == nil || secret(ref.Name) }
	switch s := &v.VolumeSource; {
	case s.Secret != nil:
		return secret(s.Secret.SecretName)
	case s.ConfigMap != nil:
		return yield(reference{kind: "configmaps", name: s.ConfigMap.Name})
	case s.PersistentVolumeClaim != nil:
		return yield(reference{kind: "persistentvolumeclaims", name: s.PersistentVolumeClaim.ClaimName})
	case s.Projected != nil:
		return projectedReferences(s.Projected.Sources, secret, yield)
	case s.AzureFile != nil:
		return secret(s.AzureFile.SecretName)
	case s.CephFS != nil:
		return local(s.CephFS.SecretRef)
	case s.Cinder != nil:
		return local(s.Cinder.SecretRef)
	case s.CSI != nil:
		return local(s.CSI.NodePublishSecretRef)
	case s.FlexVolume != nil:
		return local(s.FlexVolume.SecretRef)
	case s.ISCSI != nil:
		return local(s.ISCSI.SecretRef)
	case s.RBD != nil:
		return local(s.RBD.SecretRef)
	case s.ScaleIO != nil:
		return local(s.ScaleIO.SecretRef)
	case s.StorageOS != nil:
		return local(s.StorageOS.SecretRef)
	}
	return true
}

func projectedReferences(sources []corev1.VolumeProjection, secret func(string) bool, yield func(reference) bool) bool {
	for _, source := range sources {
		switch {
		case source.Secret != nil:
			if !secret(source.Secret.Name) {
				return false
			}
		case source.ConfigMap != nil:
			if !yield(reference{kind: "configmaps", name: source.ConfigMap.Name}) {
				return false
			}
		case source.ClusterTrustBundle != nil:
			if !yield(reference{kind: "clustertrustbundles"}) {
				return false
			}
		}
	}
	return true
}
