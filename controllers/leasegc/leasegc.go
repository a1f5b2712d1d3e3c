// Package leasegc deletes Leases that are no longer renewed and that nothing else deletes: identity Leases of
// API servers, an hour after they have expired, and heartbeats of deleted Nodes. A Node's Lease is normally
// deleted with the Node, by its owner reference. A Lease created without that reference, or created again by an
// agent that was still running, is not.
package leasegc

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationlisters "k8s.io/client-go/listers/coordination/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

const (
	// identityLabel marks the Leases of API servers, in kube-system.
	identityLabel = "apiserver.kubernetes.io/identity"
	// grace is how long a Lease stays after it has expired, so that a holder that was only disconnected finds
	// it again.
	grace = time.Hour
)

type leases struct {
	*controller.Controller
	env    *controller.Env
	lister coordinationlisters.LeaseLister
}

// New returns the controller. Its keys are Leases.
func New(env *controller.Env) (*controller.Controller, error) {
	informer := env.Informers.Coordination().V1().Leases()
	l := &leases{env: env, lister: informer.Lister()}
	l.Controller = controller.New(env, "lease-housekeeping", l.reconcile)
	controller.Watch(l.Controller, informer.Informer(), controller.Handler[*coordinationv1.Lease]{
		Add: func(lease *coordinationv1.Lease) { // renewals are noticed when the Lease is due
			if eligible(lease) {
				l.EnqueueObject(lease)
			}
		},
	})
	return l.Controller, nil
}

// eligible reports whether this controller deletes the Lease when it is abandoned.
func eligible(lease *coordinationv1.Lease) bool {
	return lease.Namespace == metav1.NamespaceSystem && lease.Labels[identityLabel] != "" ||
		lease.Namespace == corev1.NamespaceNodeLease
}

// end returns when a Lease counts as abandoned.
func end(lease *coordinationv1.Lease) time.Time {
	expiry := lease.CreationTimestamp.Time
	if lease.Spec.RenewTime != nil {
		expiry = lease.Spec.RenewTime.Time
	}
	if lease.Spec.LeaseDurationSeconds != nil {
		expiry = expiry.Add(time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second)
	}
	return expiry.Add(grace)
}

func (l *leases) reconcile(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return nil // not a key of this controller
	}
	lease, err := l.lister.Leases(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || lease.DeletionTimestamp != nil {
		return err
	}
	if end := end(lease); end.After(l.env.Clock.Now()) {
		l.EnqueueAt(key, end)
		return nil
	}
	if namespace == corev1.NamespaceNodeLease {
		_, err := l.env.Client().CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err == nil { // the Node exists, but sends no heartbeats
			l.EnqueueAfter(key, grace)
			return nil
		}
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("get node of lease %s: %w", key, err)
		}
	}
	err = l.env.Client().CoordinationV1().Leases(namespace).Delete(ctx, name, metav1.DeleteOptions{
		// The precondition fails if the Lease was renewed meanwhile.
		Preconditions: &metav1.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion},
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete lease %s: %w", key, err)
	}
	return nil
}
