// Package namespace empties a namespace that is being deleted, and then removes its finalizer.
//
// A namespace is deleted in two steps. The delete request marks it Terminating: the API server then rejects new objects
// in it, and the finalizer "kubernetes" in its spec keeps it. This controller deletes every object of every namespaced
// resource that discovery lists (content.go), reports remaining objects in conditions (conditions.go), and removes the
// finalizer when no object remains.
package namespace

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// While objects remain, the namespace is reconciled again after a delay that doubles from firstLook to maxLook. The
// deletion of the last pod, which most deletions wait for, enqueues the namespace at once.
const (
	firstLook = 20 * time.Millisecond
	maxLook   = 15 * time.Second
)

type namespaces struct {
	*controller.Controller
	client   func() kubernetes.Interface
	metadata func() metadata.Interface
	lister   corelisters.NamespaceLister
	pods     cache.Indexer
	clock    clock.PassiveClock
}

// New returns the controller. Its keys are namespaces.
func New(env *controller.Env) (*controller.Controller, error) {
	core := env.Informers.Core().V1()
	n := &namespaces{
		client: env.Client, metadata: env.Metadata, lister: core.Namespaces().Lister(),
		pods: core.Pods().Informer().GetIndexer(), clock: env.Clock,
	}
	n.Controller = controller.NewWithBackoff(env, "namespace", n.reconcile, firstLook, maxLook)
	enqueue := func(ns *corev1.Namespace) {
		if ns.DeletionTimestamp != nil {
			n.EnqueueObject(ns)
		}
	}
	controller.Watch(n.Controller, core.Namespaces().Informer(), controller.Handler[*corev1.Namespace]{
		Add: enqueue,
		Update: func(old, ns *corev1.Namespace) {
			// Status writes of this controller do not enqueue the namespace.
			if old.DeletionTimestamp == nil || len(old.Spec.Finalizers) != len(ns.Spec.Finalizers) {
				enqueue(ns)
			}
		},
	})
	controller.Watch(n.Controller, core.Pods().Informer(), controller.Handler[*corev1.Pod]{Delete: n.podDeleted})
	return n.Controller, nil
}

// podDeleted enqueues a terminating namespace after its last pod was deleted.
func (n *namespaces) podDeleted(pod *corev1.Pod) {
	ns, err := n.lister.Get(pod.Namespace)
	if err != nil || ns.DeletionTimestamp == nil {
		return
	}
	remaining, err := n.pods.IndexKeys(cache.NamespaceIndex, pod.Namespace)
	if err == nil && len(remaining) == 0 {
		n.Forget(ns.Name)
		n.Enqueue(ns.Name)
	}
}

func (n *namespaces) reconcile(ctx context.Context, key string) error {
	cached, err := n.lister.Get(key)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if cached.DeletionTimestamp == nil || !slices.Contains(cached.Spec.Finalizers, corev1.FinalizerKubernetes) {
		return nil
	}
	// Read the namespace from the API server, not from the cache: the deletion cannot be undone.
	ns, err := n.client().CoreV1().Namespaces().Get(ctx, key, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if ns.DeletionTimestamp == nil || ns.UID != cached.UID ||
		!slices.Contains(ns.Spec.Finalizers, corev1.FinalizerKubernetes) {
		return nil
	}
	if ns, err = n.markTerminating(ctx, ns); err != nil {
		return err
	}
	rest := n.deleteContent(ctx, ns)
	failure := rest.err()
	if failure == nil && len(rest.objects) == 0 {
		return n.finalize(ctx, ns)
	}
	if err := n.updateConditions(ctx, ns, rest); err != nil {
		return err
	}
	if failure != nil {
		return fmt.Errorf("namespace %s: %w", key, failure)
	}
	return controller.ErrRequeue
}

// markTerminating sets the phase Terminating and returns the updated namespace.
func (n *namespaces) markTerminating(ctx context.Context, ns *corev1.Namespace) (*corev1.Namespace, error) {
	if ns.Status.Phase == corev1.NamespaceTerminating {
		return ns, nil
	}
	ns.Status.Phase = corev1.NamespaceTerminating
	return n.client().CoreV1().Namespaces().UpdateStatus(ctx, ns, metav1.UpdateOptions{})
}

// finalize removes the finalizer of this controller. Other finalizers may still keep the namespace.
func (n *namespaces) finalize(ctx context.Context, ns *corev1.Namespace) error {
	ns = ns.DeepCopy()
	ns.Spec.Finalizers = slices.DeleteFunc(ns.Spec.Finalizers, func(f corev1.FinalizerName) bool {
		return f == corev1.FinalizerKubernetes
	})
	_, err := n.client().CoreV1().Namespaces().Finalize(ctx, ns, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
