// Package pvcprotection delays the deletion of PersistentVolumeClaims that pods use. The API server adds a finalizer to
// every new claim. This controller removes it from a deleted claim when no pod uses the claim.
// https://kubernetes.io/docs/concepts/storage/persistent-volumes/#storage-object-in-use-protection
package pvcprotection

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

const finalizer = "kubernetes.io/pvc-protection"

type protection struct {
	env    *controller.Env
	claims listers.PersistentVolumeClaimLister
	pods   listers.PodLister
}

// New returns the controller. Its keys are claims.
func New(env *controller.Env) (*controller.Controller, error) {
	core := env.Informers.Core().V1()
	p := &protection{env: env, claims: core.PersistentVolumeClaims().Lister(), pods: core.Pods().Lister()}
	c := controller.New(env, "pvc-protection", p.reconcile)
	ofClaim := func(claim *corev1.PersistentVolumeClaim) {
		if claim.DeletionTimestamp != nil || !slices.Contains(claim.Finalizers, finalizer) {
			c.EnqueueObject(claim)
		}
	}
	controller.Watch(c, core.PersistentVolumeClaims().Informer(), controller.Handler[*corev1.PersistentVolumeClaim]{
		Add:    ofClaim,
		Update: func(_, claim *corev1.PersistentVolumeClaim) { ofClaim(claim) },
	})
	controller.Watch(c, core.Pods().Informer(), controller.Handler[*corev1.Pod]{
		Delete: func(pod *corev1.Pod) {
			for name := range claimsOf(pod) {
				c.Enqueue(cache.ObjectName{Namespace: pod.Namespace, Name: name}.String())
			}
		},
	})
	return c, nil
}

func (p *protection) reconcile(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return nil // the key has another format
	}
	claim, err := p.claims.PersistentVolumeClaims(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	protected := slices.Contains(claim.Finalizers, finalizer)
	if claim.DeletionTimestamp == nil {
		if protected {
			return nil
		}
		claim = claim.DeepCopy()
		claim.Finalizers = append(claim.Finalizers, finalizer)
		return p.update(ctx, claim)
	}
	if !protected {
		return nil
	}
	used, err := p.used(ctx, claim)
	if err != nil || used {
		return err
	}
	claim = claim.DeepCopy()
	claim.Finalizers = slices.DeleteFunc(claim.Finalizers, func(f string) bool { return f == finalizer })
	return p.update(ctx, claim)
}

func (p *protection) update(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	_, err := p.env.Client().CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx, claim, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("update finalizers of claim %s: %w", controller.KeyOf(claim), err)
	}
	return nil
}

// used reports whether a pod uses the claim. If the cache has no such pod, it reads the pods from the API server.
func (p *protection) used(ctx context.Context, claim *corev1.PersistentVolumeClaim) (bool, error) {
	cached, err := p.pods.Pods(claim.Namespace).List(labels.Everything())
	if err != nil {
		return false, err
	}
	if slices.ContainsFunc(cached, func(pod *corev1.Pod) bool { return uses(pod, claim) }) {
		return true, nil
	}
	live, err := p.env.Client().CoreV1().Pods(claim.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, fmt.Errorf("list pods of claim %s: %w", controller.KeyOf(claim), err)
	}
	return slices.ContainsFunc(live.Items, func(pod corev1.Pod) bool { return uses(&pod, claim) }), nil
}

// uses reports whether a pod uses the claim. A pod without a node does not count: it has not started, and no node
// starts it while the claim is being deleted.
func uses(pod *corev1.Pod, claim *corev1.PersistentVolumeClaim) bool {
	if pod.Spec.NodeName == "" {
		return false
	}
	ephemeral, named := claimsOf(pod)[claim.Name]
	return named && (!ephemeral || metav1.IsControlledBy(claim, pod))
}

// claimsOf returns the names of a pod's claims, and whether each is of an ephemeral volume, created for the pod.
func claimsOf(pod *corev1.Pod) map[string]bool {
	names := map[string]bool{}
	for _, v := range pod.Spec.Volumes {
		switch {
		case v.PersistentVolumeClaim != nil:
			names[v.PersistentVolumeClaim.ClaimName] = false
		case v.Ephemeral != nil:
			names[pod.Name+"-"+v.Name] = true
		}
	}
	return names
}
