// Package resourcequota maintains the status of ResourceQuotas: the enforced limits and the usage.
//
// The API server adds the usage of each new object in the transaction that creates the object. This controller copies
// the limits from the spec, counts the objects that are older than the quota, and counts again after deletions. It only
// corrects the API server's numbers.
//
// A count must not undo concurrent additions by the API server. Therefore the objects are read at a revision not older
// than the quota's own, which contains every object that was added to the quota, and the status is written only if the
// quota is still at that revision.
// https://kubernetes.io/docs/concepts/policy/resource-quotas/
package resourcequota

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
	"github.com/coxswain-dev/coxswain/internal/quota"
)

const (
	// batchDelay is the delay of a count after a deletion, so that one count covers many deletions.
	batchDelay = 200 * time.Millisecond
	// resync is the period of counts without deletions.
	resync = 5 * time.Minute
)

type quotas struct {
	*controller.Controller
	env     *controller.Env
	lister  listers.ResourceQuotaLister
	monitor *monitors
}

// New returns the controller. Its keys are quotas.
func New(env *controller.Env) (*controller.Controller, error) {
	core := env.Informers.Core().V1()
	q := &quotas{env: env, lister: core.ResourceQuotas().Lister()}
	q.Controller = controller.New(env, "resourcequota", q.reconcile)
	q.monitor = newMonitors(env, q.replenish)
	q.AddRunnable(q.monitor.run)
	controller.Watch(q.Controller, core.ResourceQuotas().Informer(), controller.Handler[*corev1.ResourceQuota]{
		Add: func(obj *corev1.ResourceQuota) { q.EnqueueObject(obj) },
		Update: func(old, obj *corev1.ResourceQuota) {
			// The API server changes the status with every new object; such changes need no count.
			if !equality.Semantic.DeepEqual(old.Spec, obj.Spec) || q.chargesUnwatched(obj) {
				q.EnqueueObject(obj)
			}
		},
	})
	replenishes[*corev1.Pod](q, core.Pods().Informer(), pods)
	replenishes[*corev1.Service](q, core.Services().Informer(), services)
	replenishes[*corev1.PersistentVolumeClaim](q, core.PersistentVolumeClaims().Informer(), claims)
	return q.Controller, nil
}

// chargesUnwatched reports whether the quota has usage of a resource that is not watched: a custom kind that was
// defined after the last count. The next count watches the resource.
func (q *quotas) chargesUnwatched(rq *corev1.ResourceQuota) bool {
	for name, n := range rq.Status.Used {
		gr, ok := quota.Counted(name)
		if ok && !n.IsZero() && gr != pods && gr != services && gr != claims && !q.monitor.watches(gr) {
			return true
		}
	}
	return false
}

var (
	pods     = schema.GroupResource{Resource: "pods"}
	services = schema.GroupResource{Resource: "services"}
	claims   = schema.GroupResource{Resource: "persistentvolumeclaims"}
)

// replenishes makes a controller count quotas again when an object is deleted, or an update reduces its usage.
func replenishes[T metav1.Object](q *quotas, informer cache.SharedIndexInformer, gr schema.GroupResource) {
	controller.Watch(q.Controller, informer, controller.Handler[T]{
		Update: func(old, obj T) {
			if q.limited(obj.GetNamespace()) {
				now := q.env.Clock.Now()
				if len(quota.Growth(quota.Usage(gr, old, now), quota.Usage(gr, obj, now))) > 0 {
					q.replenish(obj.GetNamespace(), gr)
				}
			}
		},
		Delete: func(obj T) { q.replenish(obj.GetNamespace(), gr) },
	})
}

// limited reports whether the namespace has a quota.
func (q *quotas) limited(namespace string) bool {
	all, err := q.lister.ResourceQuotas(namespace).List(labels.Everything())
	return err == nil && len(all) > 0
}

// replenish enqueues the quotas of a namespace that limit a resource.
func (q *quotas) replenish(namespace string, gr schema.GroupResource) {
	all, err := q.lister.ResourceQuotas(namespace).List(labels.Everything())
	if err != nil {
		return // a lister returns no errors
	}
	for _, one := range all {
		for name := range one.Spec.Hard {
			if quota.Counts(gr, name) {
				q.EnqueueBatched(controller.KeyOf(one), batchDelay)
				break
			}
		}
	}
}

func (q *quotas) reconcile(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return nil // the key has another format
	}
	rq, err := q.lister.ResourceQuotas(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer q.EnqueuePeriodic(key, resync)
	used, err := q.count(ctx, rq)
	if err != nil {
		return err
	}
	if quota.Equal(rq.Status.Hard, rq.Spec.Hard) && quota.Equal(rq.Status.Used, used) {
		return nil
	}
	enforced := quota.Equal(rq.Status.Hard, rq.Spec.Hard)
	rq = rq.DeepCopy()
	rq.Status = corev1.ResourceQuotaStatus{Hard: rq.Spec.Hard, Used: used}
	if _, err := q.env.Client().CoreV1().ResourceQuotas(namespace).UpdateStatus(ctx, rq,
		metav1.UpdateOptions{}); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("update status of quota %s: %w", key, err)
	}
	if !enforced {
		// Before this write the API server enforced other limits, and did not add objects created after the count.
		return controller.ErrRequeue
	}
	return nil
}

// count returns the usage of each resource that the quota limits. A resource that is not served has usage 0, so that
// the API server can add its first object once it is served.
func (q *quotas) count(ctx context.Context, rq *corev1.ResourceQuota) (corev1.ResourceList, error) {
	used := corev1.ResourceList{}
	resources := map[schema.GroupResource]corev1.ResourceList{}
	for name := range rq.Spec.Hard {
		gr, ok := quota.Counted(name)
		if !ok {
			continue
		}
		if resources[gr] == nil {
			resources[gr] = corev1.ResourceList{}
		}
		resources[gr][name] = *resource.NewQuantity(0, resource.DecimalSI)
	}
	now := q.env.Clock.Now()
	for _, gr := range slices.SortedFunc(maps.Keys(resources), compareResources) {
		objects, err := q.list(ctx, gr, rq)
		if err != nil && !errors.Is(err, errNotServed) {
			return nil, fmt.Errorf("count %s in %s: %w", gr, rq.Namespace, err)
		}
		sum := resources[gr]
		for _, obj := range objects {
			if quota.InScope(&rq.Spec, obj) {
				sum = quota.Add(sum, quota.Mask(quota.Usage(gr, obj, now), resources[gr]))
			}
		}
		maps.Copy(used, sum)
	}
	return used, nil
}

func compareResources(a, b schema.GroupResource) int {
	if a.String() < b.String() {
		return -1
	}
	return 1
}

// list reads the objects of a resource at the quota's revision or later. It reads whole objects if the usage depends on
// their content, else metadata.
func (q *quotas) list(ctx context.Context, gr schema.GroupResource, rq *corev1.ResourceQuota) ([]metav1.Object, error) {
	o := metav1.ListOptions{ResourceVersion: rq.ResourceVersion,
		ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan}
	core := q.env.Client().CoreV1()
	switch gr {
	case pods:
		l, err := core.Pods(rq.Namespace).List(ctx, o)
		if err != nil {
			return nil, err
		}
		return objects(l.Items, func(i *corev1.Pod) metav1.Object { return i }), nil
	case services:
		l, err := core.Services(rq.Namespace).List(ctx, o)
		if err != nil {
			return nil, err
		}
		return objects(l.Items, func(i *corev1.Service) metav1.Object { return i }), nil
	case claims:
		l, err := core.PersistentVolumeClaims(rq.Namespace).List(ctx, o)
		if err != nil {
			return nil, err
		}
		return objects(l.Items, func(i *corev1.PersistentVolumeClaim) metav1.Object { return i }), nil
	}
	gvr, err := q.monitor.follow(ctx, gr)
	if err != nil {
		return nil, err
	}
	l, err := q.env.Metadata().Resource(gvr).Namespace(rq.Namespace).List(ctx, o)
	if err != nil {
		return nil, err
	}
	return objects(l.Items, func(i *metav1.PartialObjectMetadata) metav1.Object { return i }), nil
}

func objects[T any](items []T, convert func(*T) metav1.Object) []metav1.Object {
	all := make([]metav1.Object, len(items))
	for i := range items {
		all[i] = convert(&items[i])
	}
	return all
}
