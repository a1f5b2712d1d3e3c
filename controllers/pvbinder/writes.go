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

// event is the event of a change of phase, recorded once with the change.
type event struct{ kind, reason, message string }

// bind binds a volume and a claim, or completes their binding. It skips each step that is already done, so that after a
// failure in any step the next sync reaches the same state.
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

// setClaimBound writes the status of a bound claim. The capacity is set on the first binding only; later the resizer
// owns it.
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

// setClaimPhase writes the phase of a claim without a volume, and records the event if the phase changed.
func (b *binder) setClaimPhase(ctx context.Context, c *corev1.PersistentVolumeClaim,
	phase corev1.PersistentVolumeClaimPhase, reason *event) error {
	status := c.Status.DeepCopy()
	status.Phase, status.AccessModes, status.Capacity = phase, nil, nil
	changed := c.Status.Phase != phase
	if err := b.writeClaimStatus(ctx, c, status); err != nil {
		return err
	}
	if changed && reason != nil {
		b.recorder.Event(c, reason.kind, reason.reason, reason.message)
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

// setVolumePhase writes the phase of a volume, if it changes. reason is the event that explains a failure, or nil.
func (b *binder) setVolumePhase(ctx context.Context, v *corev1.PersistentVolume, phase corev1.PersistentVolumePhase,
	reason *event) error {
	if v.Status.Phase == phase {
		return nil
	}
	next := v.DeepCopy()
	next.Status.Phase, next.Status.Message = phase, ""
	if reason != nil {
		next.Status.Message = reason.message
	}
	_, err := b.env.Client().CoreV1().PersistentVolumes().UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("set phase of volume %s to %s: %w", v.Name, phase, err)
	}
	if reason != nil {
		b.recorder.Event(v, reason.kind, reason.reason, reason.message)
	}
	return nil
}
