// Package pvbinder binds PersistentVolumeClaims to PersistentVolumes, and keeps the phases of both.
//
// A binding is two references, spec.claimRef of the volume and spec.volumeName of the claim, written in
// this order; each sync derives everything from them, so that a crash between the two is mended by the
// next. Annotations note whether we made a reference: what a user wrote is never undone, only
// what this controller (or the scheduler, which acts like it) wrote. The files:
//
//	pvbinder.go   the informers, and the keys that a change enqueues
//	claim.go      a claim: find a volume, bind, ask for provisioning, or record why not
//	volume.go     a volume: Available, Bound, Released; and what then becomes of it
//	writes.go     the four writes of a binding
//
// Volumes are created and deleted by provisioners, such as package nodelocal.
// https://kubernetes.io/docs/concepts/storage/persistent-volumes/
package pvbinder

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-helpers/storage/volume"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// Keys of claims are "namespace/name"; those of volumes have this before the name, in which no
// namespace can have a colon.
const volumeKey = "volume:"

type binder struct {
	*controller.Controller
	env      *controller.Env
	claims   corelisters.PersistentVolumeClaimLister
	volumes  corelisters.PersistentVolumeLister
	classes  storagelisters.StorageClassLister
	pods     cache.SharedIndexInformer
	recorder record.EventRecorder
}

// New returns the controller. Its keys are claims and volumes.
func New(env *controller.Env) (*controller.Controller, error) {
	core, classes := env.Informers.Core().V1(), env.Informers.Storage().V1().StorageClasses()
	b := &binder{
		env: env, claims: core.PersistentVolumeClaims().Lister(), volumes: core.PersistentVolumes().Lister(),
		classes: classes.Lister(),
		pods:    core.Pods().Informer(), recorder: env.Recorder("persistentvolume-controller"),
	}
	if err := controller.IndexByPVC(b.pods); err != nil {
		return nil, err
	}
	b.Controller = controller.New(env, "persistentvolume-binder", b.reconcile)
	controller.Watch(b.Controller, core.PersistentVolumeClaims().Informer(),
		controller.Handler[*corev1.PersistentVolumeClaim]{
			Add: b.claimChanged, Update: func(_, c *corev1.PersistentVolumeClaim) {
				b.claimChanged(c)
			}, Delete: b.claimGone,
		})
	controller.Watch(b.Controller, core.PersistentVolumes().Informer(), controller.Handler[*corev1.PersistentVolume]{
		Add: b.volumeChanged, Update: func(_, v *corev1.PersistentVolume) { b.volumeChanged(v) }, Delete: b.volumeGone,
	})
	controller.Watch(b.Controller, classes.Informer(), controller.Handler[*storagev1.StorageClass]{
		Add: b.classChanged, Update: func(_, c *storagev1.StorageClass) { b.classChanged(c) },
	})
	controller.Watch(b.Controller, b.pods, controller.Handler[*corev1.Pod]{}) // they are only read
	return b.Controller, nil
}

func (b *binder) claimChanged(c *corev1.PersistentVolumeClaim) {
	b.EnqueueObject(c)
	if c.Spec.VolumeName != "" {
		b.Enqueue(volumeKey + c.Spec.VolumeName)
	}
}

func (b *binder) claimGone(c *corev1.PersistentVolumeClaim) {
	if c.Spec.VolumeName != "" {
		b.Enqueue(volumeKey + c.Spec.VolumeName)
		return
	}
	// One that was being bound: its volume knows it.
	for _, v := range b.all() {
		if ref := v.Spec.ClaimRef; ref != nil && ref.Namespace == c.Namespace && ref.Name == c.Name {
			b.Enqueue(volumeKey + v.Name)
		}
	}
}

// volumeChanged enqueues the claims to which the volume can make a difference. A free one may be what claims of its
// class have been waiting for.
func (b *binder) volumeChanged(v *corev1.PersistentVolume) {
	b.Enqueue(volumeKey + v.Name)
	if ref := v.Spec.ClaimRef; ref != nil {
		b.Enqueue(cache.ObjectName{Namespace: ref.Namespace, Name: ref.Name}.String())
		return
	}
	b.wake(func(c *corev1.PersistentVolumeClaim) bool {
		return c.Spec.VolumeName == v.Name ||
			!bound(c) && v.Status.Phase == corev1.VolumeAvailable &&
				volume.GetPersistentVolumeClaimClass(c) == volume.GetPersistentVolumeClass(v)
	})
}

func (b *binder) volumeGone(v *corev1.PersistentVolume) {
	if ref := v.Spec.ClaimRef; ref != nil {
		b.Enqueue(cache.ObjectName{Namespace: ref.Namespace, Name: ref.Name}.String())
	}
}

func (b *binder) classChanged(class *storagev1.StorageClass) {
	b.wake(func(c *corev1.PersistentVolumeClaim) bool {
		return !bound(c) &&
			(!volume.PersistentVolumeClaimHasClass(c) || volume.GetPersistentVolumeClaimClass(c) == class.Name)
	})
}

func (b *binder) wake(which func(*corev1.PersistentVolumeClaim) bool) {
	claims, _ := b.claims.List(labels.Everything()) // a lister has no errors
	for _, c := range claims {
		if which(c) {
			b.EnqueueObject(c)
		}
	}
}

func (b *binder) all() []*corev1.PersistentVolume {
	volumes, _ := b.volumes.List(labels.Everything()) // a lister has no errors
	return volumes
}

func (b *binder) reconcile(ctx context.Context, key string) error {
	if name, ok := strings.CutPrefix(key, volumeKey); ok {
		return b.reconcileVolume(ctx, name)
	}
	return b.reconcileClaim(ctx, key)
}
