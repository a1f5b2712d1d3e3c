// Package pvexpander expands volumes whose claims request more storage.
//
// It expands volumes of package nodelocal: a folder has no size of its own, so that only the capacity of the volume and
// then of the claim must be written. For other volumes it records an event that the claim waits for an external
// resizer. Admission has already checked that the class allows the expansion.
// https://kubernetes.io/docs/concepts/storage/persistent-volumes/#expanding-persistent-volumes-claims
package pvexpander

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-helpers/storage/volume"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
	"github.com/coxswain-dev/coxswain/controllers/nodelocal"
)

type expander struct {
	env      *controller.Env
	claims   corelisters.PersistentVolumeClaimLister
	volumes  corelisters.PersistentVolumeLister
	recorder record.EventRecorder
}

// New returns the controller. Its keys are claims.
func New(env *controller.Env) (*controller.Controller, error) {
	core := env.Informers.Core().V1()
	e := &expander{
		env: env, claims: core.PersistentVolumeClaims().Lister(), volumes: core.PersistentVolumes().Lister(),
		recorder: env.Recorder("volume_expand"),
	}
	c := controller.New(env, "persistentvolume-expander", e.reconcile)
	changed := func(claim *corev1.PersistentVolumeClaim) {
		if needsExpansion(claim) {
			c.EnqueueObject(claim)
		}
	}
	controller.Watch(c, core.PersistentVolumeClaims().Informer(), controller.Handler[*corev1.PersistentVolumeClaim]{
		Add: changed,
		Update: func(old, claim *corev1.PersistentVolumeClaim) {
			if old.Status.Phase != claim.Status.Phase ||
				storage(old.Spec.Resources.Requests).Cmp(*storage(claim.Spec.Resources.Requests)) != 0 {
				changed(claim)
			}
		},
	})
	controller.Watch(c, core.PersistentVolumes().Informer(), controller.Handler[*corev1.PersistentVolume]{})
	return c, nil
}

func storage(l corev1.ResourceList) *resource.Quantity {
	q := l[corev1.ResourceStorage]
	return &q
}

// needsExpansion reports whether a bound claim requests more than its capacity.
func needsExpansion(c *corev1.PersistentVolumeClaim) bool {
	return c.Status.Phase == corev1.ClaimBound && c.DeletionTimestamp == nil &&
		storage(c.Spec.Resources.Requests).Cmp(*storage(c.Status.Capacity)) > 0
}

func (e *expander) reconcile(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return nil // the key has another format
	}
	c, err := e.claims.PersistentVolumeClaims(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || !needsExpansion(c) {
		return err
	}
	v, err := e.volumes.Get(c.Spec.VolumeName)
	if err != nil {
		return fmt.Errorf("volume of claim %s: %w", key, err)
	}
	if v.Spec.ClaimRef == nil || v.Spec.ClaimRef.UID != c.UID {
		return nil
	}
	if v.Annotations[volume.AnnDynamicallyProvisioned] != nodelocal.Provisioner {
		e.recorder.Event(c, corev1.EventTypeNormal, "ExternalExpanding",
			"Ignoring the PVC: didn't find a plugin capable of expanding "+
				"the volume; waiting for an external controller to process this PVC.")
		return nil
	}
	return e.grow(ctx, c, v)
}

func (e *expander) grow(ctx context.Context, c *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) error {
	requested := storage(c.Spec.Resources.Requests)
	if storage(v.Spec.Capacity).Cmp(*requested) < 0 {
		patch := mustMarshal(map[string]any{
			"metadata": map[string]any{"uid": v.UID, "resourceVersion": v.ResourceVersion},
			"spec":     map[string]any{"capacity": map[string]string{"storage": requested.String()}},
		})
		if _, err := e.env.Client().CoreV1().PersistentVolumes().Patch(ctx, v.Name, types.MergePatchType, patch,
			metav1.PatchOptions{}); err != nil {
			return e.failed(c, fmt.Errorf("expand volume %s: %w", v.Name, err))
		}
	}
	conditions := slices.DeleteFunc(slices.Clone(c.Status.Conditions),
		func(c corev1.PersistentVolumeClaimCondition) bool {
			return c.Type == corev1.PersistentVolumeClaimResizing ||
				c.Type == corev1.PersistentVolumeClaimFileSystemResizePending
		})
	patch := mustMarshal(map[string]any{
		"metadata": map[string]any{"uid": c.UID, "resourceVersion": c.ResourceVersion},
		"status": map[string]any{
			"capacity": map[string]string{"storage": requested.String()}, "conditions": conditions,
		},
	})
	_, err := e.env.Client().CoreV1().PersistentVolumeClaims(c.Namespace).Patch(ctx, c.Name, types.MergePatchType,
		patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return e.failed(c, fmt.Errorf("tell claim %s its size: %w", controller.KeyOf(c), err))
	}
	e.recorder.Event(c, corev1.EventTypeNormal, "VolumeResizeSuccessful", "Resize volume succeeded")
	return nil
}

func (e *expander) failed(c *corev1.PersistentVolumeClaim, err error) error {
	if !apierrors.IsConflict(err) {
		e.recorder.Event(c, corev1.EventTypeWarning, "VolumeResizeFailed", err.Error())
	}
	return err
}

func mustMarshal(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // the callers pass only strings and API types
	}
	return text
}
