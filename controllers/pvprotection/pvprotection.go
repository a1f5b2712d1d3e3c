// Package pvprotection delays the deletion of PersistentVolumes that are bound to a claim. The API server adds a
// finalizer to every new volume. This controller removes it from a deleted volume when the volume is no longer bound.
// https://kubernetes.io/docs/concepts/storage/persistent-volumes/#storage-object-in-use-protection
package pvprotection

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

const finalizer = "kubernetes.io/pv-protection"

// New returns the controller. Its keys are volumes.
func New(env *controller.Env) (*controller.Controller, error) {
	volumes := env.Informers.Core().V1().PersistentVolumes()
	c := controller.New(env, "pv-protection", func(ctx context.Context, name string) error {
		volume, err := volumes.Lister().Get(name)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		after, changed := withFinalizer(volume)
		if !changed {
			return nil
		}
		_, err = env.Client().CoreV1().PersistentVolumes().Update(ctx, after, metav1.UpdateOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("update finalizers of volume %s: %w", name, err)
		}
		return nil
	})
	controller.Watch(c, volumes.Informer(), controller.Handler[*corev1.PersistentVolume]{
		Add:    func(volume *corev1.PersistentVolume) { c.EnqueueObject(volume) },
		Update: func(_, volume *corev1.PersistentVolume) { c.EnqueueObject(volume) },
	})
	return c, nil
}

// withFinalizer returns the volume with or without the finalizer, as its state requires, and whether that is a change.
// It does not modify volume.
func withFinalizer(volume *corev1.PersistentVolume) (after *corev1.PersistentVolume, changed bool) {
	protected := slices.Contains(volume.Finalizers, finalizer)
	switch {
	case volume.DeletionTimestamp == nil && !protected:
		after = volume.DeepCopy()
		after.Finalizers = append(after.Finalizers, finalizer)
		return after, true
	case volume.DeletionTimestamp != nil && protected && volume.Status.Phase != corev1.VolumeBound:
		after = volume.DeepCopy()
		after.Finalizers = slices.DeleteFunc(after.Finalizers, func(f string) bool { return f == finalizer })
		return after, true
	}
	return volume, false
}
