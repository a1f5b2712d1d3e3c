package nodelocal

import (
	"context"
	"fmt"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"
)

// volumeFor returns the volume of a claim on a node. Its name and folder contain the claim's uid, so that no claim ever
// gets the data of another.
func volumeFor(c *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, node *corev1.Node,
	root string) *corev1.PersistentVolume {
	name := "pvc-" + string(c.UID)
	if p := class.Parameters[PathParameter]; p != "" {
		root = p
	}
	host := hostname(node)
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name:        name,
			Labels:      map[string]string{corev1.LabelHostname: host},
			Annotations: map[string]string{volume.AnnDynamicallyProvisioned: Provisioner},
			Finalizers:  []string{finalizer},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{
				corev1.ResourceStorage: c.Spec.Resources.Requests[corev1.ResourceStorage]},
			AccessModes:                   c.Spec.AccessModes,
			PersistentVolumeReclaimPolicy: ptr.Deref(class.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete),
			StorageClassName:              class.Name,
			MountOptions:                  class.MountOptions,
			VolumeMode:                    ptr.To(corev1.PersistentVolumeFilesystem),
			VolumeAttributesClassName:     c.Spec.VolumeAttributesClassName,
			ClaimRef: &corev1.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim",
				Namespace: c.Namespace, Name: c.Name, UID: c.UID, ResourceVersion: c.ResourceVersion,
			},
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{
				Path: path.Join(root, name+"_"+c.Namespace+"_"+c.Name),
				Type: ptr.To(corev1.HostPathDirectoryOrCreate),
			}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchExpressions: []corev1.NodeSelectorRequirement{{
						Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{host},
					}},
				}}}},
		},
	}
}

// hostname returns the value of the hostname label, by which a volume finds its node even after the node registered
// again.
func hostname(n *corev1.Node) string {
	if h := n.Labels[corev1.LabelHostname]; h != "" {
		return h
	}
	return n.Name
}

// usable reports whether a volume may be created on the node if the scheduler has not selected one.
func usable(n *corev1.Node, topologies []corev1.TopologySelectorTerm) bool {
	ready := slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
	return ready && !n.Spec.Unschedulable && n.DeletionTimestamp == nil && n.Labels[corev1.LabelHostname] != "" &&
		(len(topologies) == 0 || slices.ContainsFunc(topologies, func(t corev1.TopologySelectorTerm) bool {
			return within(n, t)
		}))
}

// within reports whether the node is in the topology.
func within(n *corev1.Node, t corev1.TopologySelectorTerm) bool {
	for _, e := range t.MatchLabelExpressions {
		if value, ok := n.Labels[e.Key]; !ok || !slices.Contains(e.Values, value) {
			return false
		}
	}
	return len(t.MatchLabelExpressions) > 0
}

// classKey is the key that creates the class, once when the controller starts. A class that is deleted is not created
// again before the next start. With an empty --node-local-storage-class it is never created.
const classKey = "class:"

const defaultAnnotation = "storageclass.kubernetes.io/is-default-class"

// createClass creates the StorageClass, unless one with its name exists. The class becomes the default class unless
// another class is.
func (p *provisioner) createClass(ctx context.Context) error {
	classes, err := p.classes.List(labels.Everything())
	if err != nil {
		return err
	}
	name := *p.settings.NodeLocalClass
	isDefault := "true"
	for _, c := range classes {
		if c.Name == name {
			return nil
		}
		if c.Annotations[defaultAnnotation] == "true" {
			isDefault = "false"
		}
	}
	_, err = p.env.Client().StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: name,
			Annotations: map[string]string{defaultAnnotation: isDefault}},
		Provisioner:          Provisioner,
		ReclaimPolicy:        ptr.To(corev1.PersistentVolumeReclaimDelete),
		VolumeBindingMode:    ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
		AllowVolumeExpansion: new(true),
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create StorageClass %s: %w", name, err)
	}
	return nil
}
