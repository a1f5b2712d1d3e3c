// Package namespace empties a namespace that is being deleted, and then removes its finalizer.
//
// A namespace is deleted in two steps. The delete request marks it Terminating, after which
// the API server admits nothing new into it; the finalizer "kubernetes" in its spec keeps it.
// This controller then deletes every object of every namespaced resource that discovery
// names (content.go), reports in conditions what remains and why (conditions.go), and takes
// the finalizer away when nothing does.
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

// While something remains, the namespace is reconciled again after a delay that doubles from
// firstLook: what takes long to end is asked about seldom. The end of the last pod, for which
// most deletions wait, is seen by a watch.
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

// New returns the controller.
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
			// Our own status writes are no news.
			if old.DeletionTimestamp == nil || len(old.Spec.Finalizers) != len(ns.Spec.Finalizers) {
				enqueue(ns)
			}
		},
	})
	controller.Watch(n.Controller, core.Pods().Informer(), controller.Handler[*corev1.Pod]{Delete: n.podDeleted})
	return n.Controller, nil
}

// podDeleted goes on with a namespace that has waited for its last pod to end.
func (n *namespaces) podDeleted(pod *corev1.Pod) {
	ns, err := n.lister.Get(pod.Namespace)
	if err != nil || ns.DeletionTimestamp == nil {
		return
	}
	left, err := n.pods.IndexKeys(cache.NamespaceIndex, pod.Namespace)
	if err == nil && len(left) == 0 {
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
	// Read past the cache: what is about to happen cannot be undone.
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
	if err := n.tell(ctx, ns, rest); err != nil {
		return err
	}
	if failure != nil {
		return fmt.Errorf("namespace %s: %w", key, failure)
	}
	return controller.ErrRequeue
}

func (n *namespaces) markTerminating(ctx context.Context, ns *corev1.Namespace) (*corev1.Namespace, error) {
	if ns.Status.Phase == corev1.NamespaceTerminating {
		return ns, nil
	}
	ns.Status.Phase = corev1.NamespaceTerminating
	return n.client().CoreV1().Namespaces().UpdateStatus(ctx, ns, metav1.UpdateOptions{})
}

// finalize lets the namespace go; other finalizers may still hold it.
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
