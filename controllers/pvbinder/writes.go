package pvbinder

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// event is recorded once, with the change of phase that it explains.
type event struct{ kind, reason, message string }

// bind makes, or completes, the binding of a volume and a claim. Each step is left out where it has been done,
// and the next sync reaches the same state wherever this one stops.
func (b *binder) bind(ctx context.Context, v *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim) error {
	core := b.env.Client().CoreV1()
	next, changed, err := volume.GetBindVolumeToClaim(v, c)
	if err != nil {
		return err
	}
	if changed {
		if v, err = core.PersistentVolumes().Update(ctx, next, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("bind volume %s to claim %s: %w", next.Name, controller.KeyOf(c), err)
		}
	}
	if err := b.setVolumePhase(ctx, v, corev1.VolumeBound, nil); err != nil {
		return err
	}
	claim := c.DeepCopy()
	if claim.Spec.VolumeName == "" {
		claim.Spec.VolumeName = v.Name
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, volume.AnnBoundByController, "yes")
	}
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, volume.AnnBindCompleted, "yes")
	if claim.Spec.VolumeName != c.Spec.VolumeName || !maps.Equal(claim.Annotations, c.Annotations) {
		if claim, err = core.PersistentVolumeClaims(c.Namespace).Update(ctx, claim,
			metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("bind claim %s to volume %s: %w", controller.KeyOf(c), v.Name, err)
		}
	}
	return b.setClaimBound(ctx, claim, v)
}

// setClaimBound tells what the claim has got. Its capacity is told when it becomes bound, and then left to who
// makes it larger.
func (b *binder) setClaimBound(ctx context.Context, c *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) error {
	status := c.Status.DeepCopy()
	status.AccessModes = v.Spec.AccessModes
	if status.Phase != corev1.ClaimBound {
		status.Capacity = v.Spec.Capacity
	}
	status.Phase = corev1.ClaimBound
	status.CurrentVolumeAttributesClassName = v.Spec.VolumeAttributesClassName
	if ptr.Deref(status.CurrentVolumeAttributesClassName, "") == "" {
		status.CurrentVolumeAttributesClassName = nil
	}
	return b.writeClaimStatus(ctx, c, status)
}

// setClaimPhase writes the phase of a claim that has no volume, unless it is that already.
func (b *binder) setClaimPhase(ctx context.Context, c *corev1.PersistentVolumeClaim,
	phase corev1.PersistentVolumeClaimPhase, why *event) error {
	status := c.Status.DeepCopy()
	status.Phase, status.AccessModes, status.Capacity = phase, nil, nil
	changed := c.Status.Phase != phase
	if err := b.writeClaimStatus(ctx, c, status); err != nil {
		return err
	}
	if changed && why != nil {
		b.recorder.Event(c, why.kind, why.reason, why.message)
	}
	return nil
}

func (b *binder) writeClaimStatus(ctx context.Context, c *corev1.PersistentVolumeClaim,
	status *corev1.PersistentVolumeClaimStatus) error {
	if equality.Semantic.DeepEqual(&c.Status, status) {
		return nil
	}
	next := c.DeepCopy()
	next.Status = *status
	if _, err := b.env.Client().CoreV1().PersistentVolumeClaims(c.Namespace).UpdateStatus(ctx, next,
		metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update status of claim %s: %w", controller.KeyOf(c), err)
	}
	return nil
}

// setVolumePhase writes the phase of a volume, unless it is that already; why explains a failure.
func (b *binder) setVolumePhase(ctx context.Context, v *corev1.PersistentVolume, phase corev1.PersistentVolumePhase,
	why *event) error {
	if v.Status.Phase == phase {
		return nil
	}
	next := v.DeepCopy()
	next.Status.Phase, next.Status.Message = phase, ""
	if why != nil {
		next.Status.Message = why.message
	}
	_, err := b.env.Client().CoreV1().PersistentVolumes().UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("set phase of volume %s to %s: %w", v.Name, phase, err)
	}
	if why != nil {
		b.recorder.Event(v, why.kind, why.reason, why.message)
	}
	return nil
}
