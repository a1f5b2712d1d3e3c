// Package pvbinder binds PersistentVolumeClaims to PersistentVolumes, and keeps the phases of both.
//
// A binding consists of two references, written in this order: spec.claimRef of the volume and spec.volumeName of the
// claim. Each sync derives its work from them, so that the next sync completes a binding after a crash in between.
// Annotations record whether this controller wrote a reference. It removes only references that it or the scheduler,
// which writes the same annotations, has written. It never removes a reference of a user. The files:
//
//	pvbinder.go   the informers, and the keys that a change enqueues
//	claim.go      a claim: find a volume, bind, ask for provisioning, or record why not
//	volume.go     a volume: Available, Bound, Released, and reclaiming
//	writes.go     the four writes of a binding
//	metrics.go    kube-controller-manager's metrics of volumes and claims
//
// Volumes are created and deleted by provisioners, such as package nodelocal.
// https://kubernetes.io/docs/concepts/storage/persistent-volumes/
package pvbinder

import (
	"context"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
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

// volumeKey is the prefix of the keys of volumes. It cannot be part of a claim's key, "namespace/name", because a
// namespace contains no colon.
const volumeKey = "volume:"

type binder struct {
	*controller.Controller
	env      *controller.Env
	claims   corelisters.PersistentVolumeClaimLister
	volumes  corelisters.PersistentVolumeLister
	classes  storagelisters.StorageClassLister
	pods     cache.SharedIndexInformer
	recorder record.EventRecorder

	retroactive, retroactiveErrors func() *prometheus.CounterVec
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
	b.addMetrics(env.Metrics)
	b.Controller = controller.New(env, "persistentvolume-binder", b.reconcile)
	controller.Watch(b.Controller, core.PersistentVolumeClaims().Informer(),
		controller.Handler[*corev1.PersistentVolumeClaim]{
			Add: b.claimChanged, Update: func(_, c *corev1.PersistentVolumeClaim) {
				b.claimChanged(c)
			}, Delete: b.claimDeleted,
		})
	controller.Watch(b.Controller, core.PersistentVolumes().Informer(), controller.Handler[*corev1.PersistentVolume]{
		Add: b.volumeChanged, Update: func(_, v *corev1.PersistentVolume) { b.volumeChanged(v) },
		Delete: b.volumeDeleted,
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

func (b *binder) claimDeleted(c *corev1.PersistentVolumeClaim) {
	if c.Spec.VolumeName != "" {
		b.Enqueue(volumeKey + c.Spec.VolumeName)
		return
	}
	// The claim may have been half bound: then only its volume refers to it.
	for _, v := range b.all() {
		if ref := v.Spec.ClaimRef; ref != nil && ref.Namespace == c.Namespace && ref.Name == c.Name {
			b.Enqueue(volumeKey + v.Name)
		}
	}
}

// volumeChanged enqueues the volume and the claims that may use it: the claim that the volume names, or, for a free
// volume, the claims that name it and the unbound claims of its class.
func (b *binder) volumeChanged(v *corev1.PersistentVolume) {
	b.Enqueue(volumeKey + v.Name)
	if ref := v.Spec.ClaimRef; ref != nil {
		b.Enqueue(cache.ObjectName{Namespace: ref.Namespace, Name: ref.Name}.String())
		return
	}
	b.enqueueClaims(func(c *corev1.PersistentVolumeClaim) bool {
		return c.Spec.VolumeName == v.Name ||
			!bound(c) && v.Status.Phase == corev1.VolumeAvailable &&
				volume.GetPersistentVolumeClaimClass(c) == volume.GetPersistentVolumeClass(v)
	})
}

func (b *binder) volumeDeleted(v *corev1.PersistentVolume) {
	if ref := v.Spec.ClaimRef; ref != nil {
		b.Enqueue(cache.ObjectName{Namespace: ref.Namespace, Name: ref.Name}.String())
	}
}

func (b *binder) classChanged(class *storagev1.StorageClass) {
	b.enqueueClaims(func(c *corev1.PersistentVolumeClaim) bool {
		return !bound(c) &&
			(!volume.PersistentVolumeClaimHasClass(c) || volume.GetPersistentVolumeClaimClass(c) == class.Name)
	})
}

// enqueueClaims enqueues the selected claims.
func (b *binder) enqueueClaims(selected func(*corev1.PersistentVolumeClaim) bool) {
	claims, _ := b.claims.List(labels.Everything()) // a lister returns no errors
	for _, c := range claims {
		if selected(c) {
			b.EnqueueObject(c)
		}
	}
}

func (b *binder) all() []*corev1.PersistentVolume {
	volumes, _ := b.volumes.List(labels.Everything()) // a lister returns no errors
	return volumes
}

func (b *binder) reconcile(ctx context.Context, key string) error {
	if name, ok := strings.CutPrefix(key, volumeKey); ok {
		return b.reconcileVolume(ctx, name)
	}
	return b.reconcileClaim(ctx, key)
}
