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

// volumeFor is the volume of a claim on a node. Its name and folder bear the claim's uid, so that no claim is
// ever given another's data.
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

// hostname is the label by which volumes find their node again, also after it was registered anew.
func hostname(n *corev1.Node) string {
	if h := n.Labels[corev1.LabelHostname]; h != "" {
		return h
	}
	return n.Name
}

// usable reports whether a volume that nobody waits for with a pod may be put on the node.
func usable(n *corev1.Node, topologies []corev1.TopologySelectorTerm) bool {
	ready := slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
	return ready && !n.Spec.Unschedulable && n.DeletionTimestamp == nil && n.Labels[corev1.LabelHostname] != "" &&
		(len(topologies) == 0 || slices.ContainsFunc(topologies, func(t corev1.TopologySelectorTerm) bool {
			return within(n, t)
		}))
}

func within(n *corev1.Node, t corev1.TopologySelectorTerm) bool {
	for _, e := range t.MatchLabelExpressions {
		if value, ok := n.Labels[e.Key]; !ok || !slices.Contains(e.Values, value) {
			return false
		}
	}
	return len(t.MatchLabelExpressions) > 0
}

// classKey asks for the class once, when the controller starts. If it is deleted it stays away until then, and
// for good with an empty --node-local-storage-class.
const classKey = "class:"

const defaultAnnotation = "storageclass.kubernetes.io/is-default-class"

// createClass makes the class that claims get when they name none, unless there is one of its name. Where
// another class is the default, that stays so.
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
