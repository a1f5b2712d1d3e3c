// Package deployment moves a Deployment's pods from one template to the next.
//
// A Deployment owns one ReplicaSet for each template that it has had. The ReplicaSet with the Deployment's
// present template is the new one, all others are old. A rollout scales the new ReplicaSet up and the old ones
// down. The files:
//
//	revision.go   finding and creating the new ReplicaSet, revision annotations, clean-up of history
//	scale.go      maxSurge and maxUnavailable in pods; proportional scaling
//	rolling.go    RollingUpdate
//	recreate.go   Recreate
//	progress.go   status and the conditions Available, Progressing, ReplicaFailure
//	rollback.go   the annotation with which old clients request an earlier revision
//
// "kubectl rollout undo" needs no code here: it writes an earlier template into the Deployment,
// and the ReplicaSet with that template becomes the new one, with the next revision.
package deployment

import (
	"context"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// Kind is the kind in the ReplicaSets' owner references.
var Kind = appsv1.SchemeGroupVersion.WithKind("Deployment")

type deployments struct {
	*controller.Controller
	client     func() kubernetes.Interface
	lister     appslisters.DeploymentLister
	informer   cache.SharedIndexInformer
	sets       cache.SharedIndexInformer
	pods       cache.SharedIndexInformer
	recorder   record.EventRecorder
	clock      clock.PassiveClock
	dependents *controller.Dependents
}

// New returns the controller.
func New(env *controller.Env) (*controller.Controller, error) {
	apps := env.Informers.Apps().V1()
	sets, pods := apps.ReplicaSets().Informer(), env.Informers.Core().V1().Pods().Informer()
	for _, informer := range []cache.SharedIndexInformer{sets, pods} {
		if err := controller.IndexByController(informer); err != nil {
			return nil, err
		}
	}
	c := &deployments{
		client: env.Client, lister: apps.Deployments().Lister(), informer: apps.Deployments().Informer(),
		sets: sets, pods: pods,
		recorder: env.Recorder("deployment-controller"), clock: env.Clock,
	}
	c.Controller = controller.New(env, "deployment", c.reconcile)
	enqueue := func(d *appsv1.Deployment) { c.EnqueueObject(d) }
	controller.Watch(c.Controller, c.informer, controller.Handler[*appsv1.Deployment]{
		Add: enqueue, Update: func(_, d *appsv1.Deployment) { enqueue(d) }, Delete: enqueue,
	})
	c.dependents = &controller.Dependents{Controller: c.Controller, Kind: Kind,
		Adopters: controller.Adopters(c.Controller,
			func(namespace string) ([]*appsv1.Deployment, error) {
				return c.lister.Deployments(namespace).List(labels.Everything())
			},
			func(d *appsv1.Deployment) *metav1.LabelSelector { return d.Spec.Selector })}
	changed := func(rs *appsv1.ReplicaSet) { c.dependents.Changed(rs) }
	controller.Watch(c.Controller, sets, controller.Handler[*appsv1.ReplicaSet]{
		Add: changed, Delete: changed,
		Update: func(old, rs *appsv1.ReplicaSet) {
			c.dependents.Moved(old, rs)
			changed(rs)
		},
	})
	controller.Watch(c.Controller, pods, controller.Handler[*corev1.Pod]{Delete: c.podDeleted})
	return c.Controller, nil
}

// podDeleted enqueues a Deployment with strategy Recreate, which waits for its last old pod.
func (c *deployments) podDeleted(pod *corev1.Pod) {
	ref := metav1.GetControllerOfNoCopy(pod)
	if ref == nil || ref.Kind != "ReplicaSet" {
		return
	}
	rs, ok := controller.Cached[*appsv1.ReplicaSet](c.sets,
		cache.ObjectName{Namespace: pod.Namespace, Name: ref.Name}.String())
	if !ok {
		return
	}
	key, ok := c.dependents.OwnerKey(rs)
	if !ok {
		return
	}
	d, ok := controller.Cached[*appsv1.Deployment](c.informer, key)
	if ok && d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		c.Enqueue(key)
	}
}

// rollout is the state of one sync of a Deployment. Writes during the sync replace the Deployment and its
// ReplicaSets by the server's answers. All objects in it are copies.
type rollout struct {
	*deployments
	d *appsv1.Deployment
	// sets are all ReplicaSets of d. current is the new ReplicaSet or nil, old are the others.
	sets    []*appsv1.ReplicaSet
	current *appsv1.ReplicaSet
	old     []*appsv1.ReplicaSet
}

func (c *deployments) reconcile(ctx context.Context, key string) error {
	cached, ok := controller.Cached[*appsv1.Deployment](c.informer, key)
	if !ok {
		return nil
	}
	d := cached.DeepCopy()
	if equality.Semantic.DeepEqual(d.Spec.Selector, &metav1.LabelSelector{}) {
		c.recorder.Event(d, corev1.EventTypeWarning, "SelectingAll",
			"This deployment is selecting all pods. A non-empty selector is required.")
		return c.observe(ctx, d)
	}
	owned, err := c.ownedSets(ctx, d)
	if err != nil {
		return err
	}
	r := &rollout{deployments: c, d: d, sets: owned}
	r.classify()
	return r.step(ctx)
}

// step takes the next step of the rollout. Watch events of its writes enqueue the Deployment for the step after
// it.
func (r *rollout) step(ctx context.Context) error {
	if r.d.DeletionTimestamp != nil {
		return r.updateStatus(ctx)
	}
	if err := r.syncPausedCondition(ctx); err != nil {
		return err
	}
	if r.current != nil {
		if err := r.syncRevision(ctx); err != nil {
			return err
		}
	}
	revision, requested := rollbackTo(r.d)
	switch {
	case r.d.Spec.Paused:
		return r.scaleOnly(ctx)
	case requested:
		return r.rollback(ctx, revision)
	case r.wasScaled():
		return r.scaleOnly(ctx)
	case r.d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType:
		return r.recreate(ctx)
	}
	return r.roll(ctx)
}

// scaleOnly applies a change of spec.replicas without moving pods between templates.
func (r *rollout) scaleOnly(ctx context.Context) error {
	if err := r.scaleProportionally(ctx); err != nil {
		// The next sync continues from the writes before the error.
		return err
	}
	if r.d.Spec.Paused {
		if err := r.cleanUp(ctx); err != nil {
			return err
		}
	}
	return r.updateStatus(ctx)
}

func (c *deployments) observe(ctx context.Context, d *appsv1.Deployment) error {
	if d.Status.ObservedGeneration >= d.Generation {
		return nil
	}
	d.Status.ObservedGeneration = d.Generation
	_, err := c.client().AppsV1().Deployments(d.Namespace).UpdateStatus(ctx, d, metav1.UpdateOptions{})
	return err
}

// ownedSets claims d's ReplicaSets and returns copies of them, oldest first.
func (c *deployments) ownedSets(ctx context.Context, d *appsv1.Deployment) ([]*appsv1.ReplicaSet, error) {
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err != nil {
		return nil, err
	}
	found, err := controller.OwnedOrOrphaned[*appsv1.ReplicaSet](c.sets, d)
	if err != nil {
		return nil, err
	}
	claimed, err := controller.Claim(ctx, controller.Claimer{
		Owner: d, Kind: Kind, Selector: selector,
		Live: func(ctx context.Context) (metav1.Object, error) {
			return c.client().AppsV1().Deployments(d.Namespace).Get(ctx, d.Name, metav1.GetOptions{})
		},
		Patch: func(ctx context.Context, rs metav1.Object, patch []byte) error {
			_, err := c.client().AppsV1().ReplicaSets(d.Namespace).Patch(ctx, rs.GetName(),
				types.StrategicMergePatchType, patch, metav1.PatchOptions{})
			return err
		},
	}, found)
	if err != nil {
		return nil, err
	}
	sets := make([]*appsv1.ReplicaSet, len(claimed))
	for i, rs := range claimed {
		sets[i] = rs.DeepCopy()
	}
	slices.SortFunc(sets, olderFirst)
	return sets, nil
}
