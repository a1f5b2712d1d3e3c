// Package ephemeralvolume creates the claims of pods' generic ephemeral volumes. Such a claim lives as long as
// its pod: the pod owns it, so the garbage collector deletes it.
// https://kubernetes.io/docs/concepts/storage/ephemeral-volumes/#generic-ephemeral-volumes
package ephemeralvolume

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-helpers/storage/ephemeral"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

type ephemeralVolumes struct {
	env      *controller.Env
	informer cache.SharedIndexInformer
	pods     corelisters.PodLister
	claims   corelisters.PersistentVolumeClaimLister
	recorder record.EventRecorder

	creations, failures func() *prometheus.CounterVec
}

// New returns the controller. Its keys are pods.
func New(env *controller.Env) (*controller.Controller, error) {
	core := env.Informers.Core().V1()
	e := &ephemeralVolumes{
		env: env, informer: core.Pods().Informer(), pods: core.Pods().Lister(),
		claims:   core.PersistentVolumeClaims().Lister(),
		recorder: env.Recorder("ephemeral_volume"),
		creations: env.Metrics.Counter("ephemeral_volume_controller_create_total",
			"Number of PersistentVolumeClaim creation requests"),
		failures: env.Metrics.Counter("ephemeral_volume_controller_create_failures_total",
			"Number of PersistentVolumeClaim creation requests"),
	}
	if err := controller.IndexByPVC(e.informer); err != nil {
		return nil, err
	}
	c := controller.New(env, "ephemeral-volume", e.reconcile)
	controller.Watch(c, e.informer, controller.Handler[*corev1.Pod]{
		Add: func(pod *corev1.Pod) { // a pod's volumes never change
			for i := range pod.Spec.Volumes {
				if pod.Spec.Volumes[i].Ephemeral != nil {
					c.EnqueueObject(pod)
					return
				}
			}
		},
	})
	controller.Watch(c, core.PersistentVolumeClaims().Informer(), controller.Handler[*corev1.PersistentVolumeClaim]{
		Delete: func(claim *corev1.PersistentVolumeClaim) {
			pods, _ := controller.PodsUsingPVC(e.informer, claim.Namespace, claim.Name) // New has added the index
			for _, pod := range pods {
				c.EnqueueObject(pod)
			}
		},
	})
	return c, nil
}

func (e *ephemeralVolumes) reconcile(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return nil // not a key of this controller
	}
	pod, err := e.pods.Pods(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || pod.DeletionTimestamp != nil {
		return err
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.Ephemeral == nil {
			continue
		}
		if err := e.claim(ctx, pod, v); err != nil {
			e.recorder.Eventf(pod, corev1.EventTypeWarning, "FailedBinding", "ephemeral volume %s: %v", v.Name, err)
			return fmt.Errorf("pod %s, ephemeral volume %s: %w", key, v.Name, err)
		}
	}
	return nil
}

// claim creates the claim of a volume, if it does not exist.
func (e *ephemeralVolumes) claim(ctx context.Context, pod *corev1.Pod, v *corev1.Volume) error {
	name := ephemeral.VolumeClaimName(pod, v)
	claim, err := e.claims.PersistentVolumeClaims(pod.Namespace).Get(name)
	if err == nil {
		return ephemeral.VolumeIsForPod(pod, claim)
	}
	if !apierrors.IsNotFound(err) {
		return err
	}
	template := v.Ephemeral.VolumeClaimTemplate
	owner := metav1.NewControllerRef(pod, corev1.SchemeGroupVersion.WithKind("Pod"))
	claim = &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: name, Labels: template.Labels, Annotations: template.Annotations,
			OwnerReferences: []metav1.OwnerReference{*owner},
		},
		Spec: template.Spec,
	}
	_, err = e.env.Client().CoreV1().PersistentVolumeClaims(pod.Namespace).Create(ctx, claim, metav1.CreateOptions{})
	e.creations().WithLabelValues().Inc()
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil
	}
	if err != nil {
		e.failures().WithLabelValues().Inc()
		return fmt.Errorf("create PVC %s: %w", name, err)
	}
	return nil
}
