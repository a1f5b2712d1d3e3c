// Package resourcequota keeps the status of ResourceQuotas: the limits in force, and their use.
//
// The API server adds each created object, in the transaction that creates it. This controller
// copies the limits of the spec, counts the objects that are older than the quota, and counts
// again after deletions: it only ever corrects.
//
// A count must not undo what the API server adds meanwhile. So the objects are read at a
// revision not older than the quota's own, which has every object that it was charged for, and
// the status is written only if the quota is still at that revision.
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
	// settle is how long after something has gone a quota is counted: much may go at once.
	settle = 200 * time.Millisecond
	// resync is how often a quota is counted although nothing seems to have gone.
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
			// The status changes with every object that is charged, and is right then.
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

// chargesUnwatched reports whether objects are charged for that nobody sees go: of a custom kind that has been defined
// since the quota was counted. The next count watches them.
func (q *quotas) chargesUnwatched(is *corev1.ResourceQuota) bool {
	for name, n := range is.Status.Used {
		of, ok := quota.Counted(name)
		if ok && !n.IsZero() && of != pods && of != services && of != claims && !q.monitor.watches(of) {
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

// replenishes has quotas counted again when an object goes, or comes to use less.
func replenishes[T metav1.Object](q *quotas, informer cache.SharedIndexInformer, of schema.GroupResource) {
	controller.Watch(q.Controller, informer, controller.Handler[T]{
		Update: func(old, obj T) {
			if q.limited(obj.GetNamespace()) {
				now := q.env.Clock.Now()
				if len(quota.Growth(quota.Usage(of, old, now), quota.Usage(of, obj, now))) > 0 {
					q.replenish(obj.GetNamespace(), of)
				}
			}
		},
		Delete: func(obj T) { q.replenish(obj.GetNamespace(), of) },
	})
}

func (q *quotas) limited(namespace string) bool {
	all, err := q.lister.ResourceQuotas(namespace).List(labels.Everything())
	return err == nil && len(all) > 0
}

// replenish has those quotas of a namespace counted that limit a resource.
func (q *quotas) replenish(namespace string, of schema.GroupResource) {
	all, err := q.lister.ResourceQuotas(namespace).List(labels.Everything())
	if err != nil {
		return // the lister has no errors to give
	}
	for _, one := range all {
		for name := range one.Spec.Hard {
			if quota.Counts(of, name) {
				q.EnqueueBatched(controller.KeyOf(one), settle)
				break
			}
		}
	}
}

func (q *quotas) reconcile(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return nil // no key of ours
	}
	is, err := q.lister.ResourceQuotas(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer q.EnqueuePeriodic(key, resync)
	used, err := q.count(ctx, is)
	if err != nil {
		return err
	}
	if quota.Equal(is.Status.Hard, is.Spec.Hard) && quota.Equal(is.Status.Used, used) {
		return nil
	}
	enforced := quota.Equal(is.Status.Hard, is.Spec.Hard)
	is = is.DeepCopy()
	is.Status = corev1.ResourceQuotaStatus{Hard: is.Spec.Hard, Used: used}
	if _, err := q.env.Client().CoreV1().ResourceQuotas(namespace).UpdateStatus(ctx, is,
		metav1.UpdateOptions{}); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("update status of quota %s: %w", key, err)
	}
	if !enforced {
		// Until this write, nothing was charged for what came after the count.
		return controller.ErrRequeue
	}
	return nil
}

// count adds up what is used of each resource that the quota limits. Of a kind that is not served nothing is used, so
// that its first object can be charged for when it is.
func (q *quotas) count(ctx context.Context, is *corev1.ResourceQuota) (corev1.ResourceList, error) {
	used := corev1.ResourceList{}
	resources := map[schema.GroupResource]corev1.ResourceList{}
	for name := range is.Spec.Hard {
		of, ok := quota.Counted(name)
		if !ok {
			continue
		}
		if resources[of] == nil {
			resources[of] = corev1.ResourceList{}
		}
		resources[of][name] = *resource.NewQuantity(0, resource.DecimalSI)
	}
	now := q.env.Clock.Now()
	for _, of := range slices.SortedFunc(maps.Keys(resources), compareResources) {
		objects, err := q.list(ctx, of, is)
		if err != nil && !errors.Is(err, errNotServed) {
			return nil, fmt.Errorf("count %s in %s: %w", of, is.Namespace, err)
		}
		sum := resources[of]
		for _, obj := range objects {
			if quota.InScope(&is.Spec, obj) {
				sum = quota.Add(sum, quota.Mask(quota.Usage(of, obj, now), resources[of]))
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

// list reads the objects of a resource, whole where their content counts.
func (q *quotas) list(ctx context.Context, of schema.GroupResource, is *corev1.ResourceQuota) ([]metav1.Object, error) {
	o := metav1.ListOptions{ResourceVersion: is.ResourceVersion,
		ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan}
	core := q.env.Client().CoreV1()
	switch of {
	case pods:
		l, err := core.Pods(is.Namespace).List(ctx, o)
		if err != nil {
			return nil, err
		}
		return objects(l.Items, func(i *corev1.Pod) metav1.Object { return i }), nil
	case services:
		l, err := core.Services(is.Namespace).List(ctx, o)
		if err != nil {
			return nil, err
		}
		return objects(l.Items, func(i *corev1.Service) metav1.Object { return i }), nil
	case claims:
		l, err := core.PersistentVolumeClaims(is.Namespace).List(ctx, o)
		if err != nil {
			return nil, err
		}
		return objects(l.Items, func(i *corev1.PersistentVolumeClaim) metav1.Object { return i }), nil
	}
	gvr, err := q.monitor.follow(ctx, of)
	if err != nil {
		return nil, err
	}
	l, err := q.env.Metadata().Resource(gvr).Namespace(is.Namespace).List(ctx, o)
	if err != nil {
		return nil, err
	}
	return objects(l.Items, func(i *metav1.PartialObjectMetadata) metav1.Object { return i }), nil
}

func objects[T any](items []T, as func(*T) metav1.Object) []metav1.Object {
	all := make([]metav1.Object, len(items))
	for i := range items {
		all[i] = as(&items[i])
	}
	return all
}
