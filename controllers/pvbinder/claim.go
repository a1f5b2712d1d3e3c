package pvbinder

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// bound reports whether the claim has been bound. A bound claim never gets another volume, since its data is on the
// first.
func bound(c *corev1.PersistentVolumeClaim) bool {
	return metav1.HasAnnotation(c.ObjectMeta, volume.AnnBindCompleted)
}

func (b *binder) reconcileClaim(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return nil // the key has another format
	}
	c, err := b.claims.PersistentVolumeClaims(namespace).Get(name)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	case bound(c):
		return b.boundClaim(ctx, c)
	case c.Spec.VolumeName != "":
		return b.preBoundClaim(ctx, c)
	}
	return b.unboundClaim(ctx, c)
}

// unboundClaim binds the claim to a matching volume. If there is none, it triggers provisioning or records the reason.
func (b *binder) unboundClaim(ctx context.Context, c *corev1.PersistentVolumeClaim) error {
	delayed, err := b.delayed(c)
	if err != nil {
		return err
	}
	volumes := slices.DeleteFunc(slices.Clone(b.all()), func(v *corev1.PersistentVolume) bool {
		return !volume.CheckAccessModes(c, v)
	})
	// Of several volumes of the same size, FindMatchingVolume returns the first: prefer the one with the fewest access
	// modes.
	slices.SortFunc(volumes, func(x, y *corev1.PersistentVolume) int {
		return cmp.Or(cmp.Compare(len(x.Spec.AccessModes), len(y.Spec.AccessModes)), cmp.Compare(x.Name, y.Name))
	})
	found, err := volume.FindMatchingVolume(c, volumes, nil, nil, delayed, true)
	if err != nil {
		return err
	}
	if found != nil {
		return b.bind(ctx, found, c)
	}
	if changed, err := b.assignDefaultClass(ctx, c); changed || err != nil {
		return err
	}
	class := volume.GetPersistentVolumeClaimClass(c)
	switch {
	case delayed:
		b.recordDelay(c)
	case class != "":
		if err := b.askProvisioner(ctx, c, class); err != nil {
			return err
		}
	default:
		b.recorder.Event(c, corev1.EventTypeNormal, "FailedBinding",
			"no persistent volumes available for this claim and no storage class is set")
	}
	return b.setClaimPhase(ctx, c, corev1.ClaimPending, nil)
}

// delayed reports whether the claim waits until the scheduler has selected a node for its first pod.
func (b *binder) delayed(c *corev1.PersistentVolumeClaim) (bool, error) {
	if volume.IsDelayBindingProvisioning(c) {
		return false, nil
	}
	return volume.IsDelayBindingMode(c, b.classes)
}

// preBoundClaim binds a claim to the volume that it names, or records why that is not possible.
func (b *binder) preBoundClaim(ctx context.Context, c *corev1.PersistentVolumeClaim) error {
	v, err := b.volumes.Get(c.Spec.VolumeName)
	if apierrors.IsNotFound(err) {
		return b.setClaimPhase(ctx, c, corev1.ClaimPending, nil)
	}
	if err != nil {
		return err
	}
	switch {
	case v.Spec.ClaimRef == nil:
		if reason := unsatisfied(v, c); reason != "" {
			b.recorder.Eventf(c, corev1.EventTypeWarning, "VolumeMismatch", "Cannot bind to requested volume %q: %s",
				v.Name, reason)
			return b.setClaimPhase(ctx, c, corev1.ClaimPending, nil)
		}
		return b.bind(ctx, v, c)
	case volume.IsVolumeBoundToClaim(v, c):
		return b.bind(ctx, v, c)
	case metav1.HasAnnotation(c.ObjectMeta, volume.AnnBoundByController):
		// This controller names a volume only after the volume was bound to the claim. Another client has changed it.
		return fmt.Errorf("invalid binding of claim %q to volume %q: volume already claimed by %q",
			controller.KeyOf(c), v.Name, v.Spec.ClaimRef.Namespace+"/"+v.Spec.ClaimRef.Name)
	}
	b.recorder.Eventf(c, corev1.EventTypeWarning, "FailedBinding", "volume %q already bound to a different claim.",
		v.Name)
	return b.setClaimPhase(ctx, c, corev1.ClaimPending, nil)
}

// unsatisfied returns the reason why a volume does not satisfy the claim, or "" if it does.
func unsatisfied(v *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim) string {
	requested := c.Spec.Resources.Requests[corev1.ResourceStorage]
	capacity := v.Spec.Capacity[corev1.ResourceStorage]
	switch {
	case v.DeletionTimestamp != nil:
		return "the volume is marked for deletion " + fmt.Sprintf("%q", v.Name)
	case capacity.Cmp(requested) < 0:
		return "requested PV is too small"
	case volume.GetPersistentVolumeClass(v) != volume.GetPersistentVolumeClaimClass(c):
		return "storageClassName does not match"
	case ptr.Deref(v.Spec.VolumeAttributesClassName, "") != ptr.Deref(c.Spec.VolumeAttributesClassName, ""):
		return "volumeAttributesClassName does not match"
	case volume.CheckVolumeModeMismatches(&c.Spec, &v.Spec):
		return "incompatible volumeMode"
	case !volume.CheckAccessModes(c, v):
		return "incompatible accessMode"
	}
	return ""
}

// boundClaim completes the binding of a claim, or sets the phase Lost if the claim no longer has its volume.
func (b *binder) boundClaim(ctx context.Context, c *corev1.PersistentVolumeClaim) error {
	lost := func(reason, message string) error {
		return b.setClaimPhase(ctx, c, corev1.ClaimLost, &event{corev1.EventTypeWarning, reason, message})
	}
	if c.Spec.VolumeName == "" {
		return lost("ClaimLost", "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!")
	}
	v, err := b.volumes.Get(c.Spec.VolumeName)
	if apierrors.IsNotFound(err) {
		// The cache may not have a new volume yet. Read it from the API server before the claim becomes Lost.
		v, err = b.env.Client().CoreV1().PersistentVolumes().Get(ctx, c.Spec.VolumeName, metav1.GetOptions{})
	}
	switch {
	case apierrors.IsNotFound(err):
		return lost("ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!")
	case err != nil:
		return err
	case v.Spec.ClaimRef == nil || v.Spec.ClaimRef.UID == c.UID || v.Spec.ClaimRef.UID == "" &&
		volume.IsVolumeBoundToClaim(v, c):
		return b.bind(ctx, v, c)
	}
	return lost("ClaimMisbound", "Two claims are bound to the same volume, this one is bound incorrectly")
}

// assignDefaultClass sets the default class in a claim that was created when there was no default class.
func (b *binder) assignDefaultClass(ctx context.Context, c *corev1.PersistentVolumeClaim) (changed bool, err error) {
	if volume.PersistentVolumeClaimHasClass(c) {
		return false, nil
	}
	classes, err := b.classes.List(labels.Everything())
	if err != nil {
		return false, err
	}
	class := defaultClass(classes)
	if class == nil {
		return false, nil
	}
	c = c.DeepCopy()
	c.Spec.StorageClassName = &class.Name
	_, err = b.env.Client().CoreV1().PersistentVolumeClaims(c.Namespace).Update(ctx, c, metav1.UpdateOptions{})
	b.retroactive().WithLabelValues().Inc()
	if err != nil {
		b.retroactiveErrors().WithLabelValues().Inc()
		return false, fmt.Errorf("set the class of claim %s to the default: %w", controller.KeyOf(c), err)
	}
	return true, nil
}

// defaultClass returns the newest class that is marked as the default, or nil.
func defaultClass(classes []*storagev1.StorageClass) *storagev1.StorageClass {
	var newest *storagev1.StorageClass
	for _, class := range classes {
		if class.Annotations["storageclass.kubernetes.io/is-default-class"] != "true" &&
			class.Annotations["storageclass.beta.kubernetes.io/is-default-class"] != "true" {
			continue
		}
		if newest == nil || newest.CreationTimestamp.Before(&class.CreationTimestamp) ||
			newest.CreationTimestamp.Equal(&class.CreationTimestamp) && class.Name < newest.Name {
			newest = class
		}
	}
	return newest
}

// recordDelay records the event that the claim waits for its first consumer, or for the scheduling of its pods.
func (b *binder) recordDelay(c *corev1.PersistentVolumeClaim) {
	pods, _ := controller.PodsUsingPVC(b.pods, c.Namespace, c.Name) // an existing index returns no errors
	var waiting []string
	for _, pod := range pods {
		if pod.Spec.NodeName == "" && !controller.PodEnded(pod) {
			waiting = append(waiting, pod.Name)
		}
	}
	if len(waiting) == 0 {
		b.recorder.Event(c, corev1.EventTypeNormal, "WaitForFirstConsumer",
			"waiting for first consumer to be created before binding")
		return
	}
	slices.Sort(waiting)
	noun := "pod "
	if len(waiting) > 1 {
		noun = "pods "
	}
	b.recorder.Eventf(c, corev1.EventTypeNormal, "WaitForPodScheduled", "waiting for %s to be scheduled",
		noun+strings.Join(waiting, ","))
}

// askProvisioner annotates the claim with its class's provisioner, which watches for this annotation.
func (b *binder) askProvisioner(ctx context.Context, c *corev1.PersistentVolumeClaim, name string) error {
	class, err := b.classes.Get(name)
	if err != nil {
		b.recorder.Event(c, corev1.EventTypeWarning, "ProvisioningFailed", err.Error())
		return nil // a new class enqueues the claim again
	}
	if class.Provisioner == volume.NotSupportedProvisioner {
		b.recorder.Eventf(c, corev1.EventTypeWarning, "ProvisioningFailed", "no volume plugin matched name: %s",
			class.Provisioner)
		return nil
	}
	if c.Annotations[volume.AnnStorageProvisioner] != class.Provisioner {
		c = c.DeepCopy()
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, volume.AnnStorageProvisioner, class.Provisioner)
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, volume.AnnBetaStorageProvisioner, class.Provisioner)
		if _, err := b.env.Client().CoreV1().PersistentVolumeClaims(c.Namespace).Update(ctx, c,
			metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("name the provisioner of claim %s: %w", controller.KeyOf(c), err)
		}
		return nil // the event of this write enqueues the claim again
	}
	b.recorder.Eventf(c, corev1.EventTypeNormal, "ExternalProvisioning",
		"Waiting for a volume to be created either by the external provisioner '%s' or manually by the system "+
			"administrator. "+
			"If volume creation is delayed, please verify that the provisioner is running and correctly registered.",
		class.Provisioner)
	return nil
}
