package pvbinder

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"
)

func (b *binder) reconcileVolume(ctx context.Context, name string) error {
	v, err := b.volumes.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	ref := v.Spec.ClaimRef
	if ref == nil || ref.UID == "" { // free, or reserved for a claim that does not exist yet
		return b.setVolumePhase(ctx, v, corev1.VolumeAvailable, nil)
	}
	c, err := b.claimOf(ctx, ref)
	switch {
	case err != nil:
		return err
	case c == nil:
		return b.release(ctx, v)
	case c.Spec.VolumeName == v.Name:
		return b.setVolumePhase(ctx, v, corev1.VolumeBound, nil)
	case c.Spec.VolumeName == "":
		if volume.CheckVolumeModeMismatches(&c.Spec, &v.Spec) {
			b.recorder.Eventf(v, corev1.EventTypeWarning, "VolumeMismatch",
				"Cannot bind PersistentVolume to requested PersistentVolumeClaim %q due to incompatible volumeMode.",
				c.Name)
			b.recorder.Eventf(c, corev1.EventTypeWarning, "VolumeMismatch",
				"Cannot bind PersistentVolume %q to requested PersistentVolumeClaim %q due to incompatible volumeMode.",
				v.Name, c.Name)
			return nil
		}
		b.EnqueueObject(c) // half bound: the sync of the claim completes the binding
		return nil
	}
	// The claim has another volume.
	if metav1.HasAnnotation(v.ObjectMeta, volume.AnnDynamicallyProvisioned) &&
		v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete {
		return b.release(ctx, v) // it was provisioned for this claim only
	}
	return b.unbind(ctx, v)
}

// claimOf returns the claim that a volume is bound to, or nil if the claim no longer exists. A released volume may be
// deleted with its data, so the API server must confirm that the claim does not exist.
func (b *binder) claimOf(ctx context.Context, ref *corev1.ObjectReference) (*corev1.PersistentVolumeClaim, error) {
	c, err := b.claims.PersistentVolumeClaims(ref.Namespace).Get(ref.Name)
	if err == nil && c.UID == ref.UID {
		return c, nil
	}
	c, err = b.env.Client().CoreV1().PersistentVolumeClaims(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && c.UID != ref.UID {
		return nil, nil
	}
	return c, err
}

// release sets the phase Released on a volume whose claim no longer exists, and then applies the reclaim policy.
func (b *binder) release(ctx context.Context, v *corev1.PersistentVolume) error {
	if phase := v.Status.Phase; phase != corev1.VolumeReleased && phase != corev1.VolumeFailed {
		return b.setVolumePhase(ctx, v, corev1.VolumeReleased, nil) // the event of this write enqueues the volume again
	}
	switch v.Spec.PersistentVolumeReclaimPolicy {
	case corev1.PersistentVolumeReclaimDelete:
		if v.Annotations[volume.AnnDynamicallyProvisioned] != "" {
			return nil // its provisioner deletes the volume
		}
		return b.failVolume(ctx, v, "VolumeFailedDelete",
			fmt.Sprintf("error getting deleter volume plugin for volume %q: no deletable volume plugin matched",
				v.Name))
	case corev1.PersistentVolumeReclaimRecycle:
		return b.failVolume(ctx, v, "VolumeFailedRecycle", "No recycler plugin found for the volume!")
	}
	return nil // Retain: the administrator decides
}

func (b *binder) failVolume(ctx context.Context, v *corev1.PersistentVolume, reason, message string) error {
	return b.setVolumePhase(ctx, v, corev1.VolumeFailed, &event{corev1.EventTypeWarning, reason, message})
}

// unbind removes the reference to the claim if this controller wrote it. If a user wrote it, only the uid is removed:
// the volume stays reserved for a claim of that name.
func (b *binder) unbind(ctx context.Context, v *corev1.PersistentVolume) error {
	v = v.DeepCopy()
	if metav1.HasAnnotation(v.ObjectMeta, volume.AnnBoundByController) {
		v.Spec.ClaimRef = nil
		delete(v.Annotations, volume.AnnBoundByController)
	} else {
		v.Spec.ClaimRef.UID = types.UID("")
	}
	unbound, err := b.env.Client().CoreV1().PersistentVolumes().Update(ctx, v, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("unbind volume %s: %w", v.Name, err)
	}
	return b.setVolumePhase(ctx, unbound, corev1.VolumeAvailable, nil)
}
