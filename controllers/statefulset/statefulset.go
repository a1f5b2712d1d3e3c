// Package statefulset runs pods with stable names: web-0, web-1, …, each with its own volumes. They are created and
// deleted in the order of their ordinals.
//
// Its input is a StatefulSet with its pods, volume claims and revisions. It writes pods, claims, the status and events.
// The files:
//
//	statefulset.go  the informers of the controller, and one sync of a set
//	ordinals.go     the desired pods; creating and deleting them in order
//	update.go       moving pods to the next template
//	pod.go          the pod for an ordinal: name, labels, host name, volumes
//	claim.go        volume claims and their owners
//	status.go       the status, and when a rolling update is complete
package statefulset

import (
	"context"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
	"github.com/coxswain-dev/coxswain/controllers/lib/history"
)

// Kind is the kind in the pods' owner references.
var Kind = appsv1.SchemeGroupVersion.WithKind("StatefulSet")

type statefulSets struct {
	*controller.Controller
	*controller.OwnerExpectations
	client   func() kubernetes.Interface
	lister   appslisters.StatefulSetLister
	informer cache.SharedIndexInformer
	pods     cache.SharedIndexInformer
	claims   corelisters.PersistentVolumeClaimLister
	history  *history.History
	recorder record.EventRecorder
	clock    clock.PassiveClock
	// dependents counts our deletions, since a cache that does not show them yet could lead to one deletion too many.
	// Creations need no such care: the fixed names prevent duplicate pods.
	dependents *controller.Dependents
}

// New returns the controller. Its keys are StatefulSets.
func New(env *controller.Env) (*controller.Controller, error) {
	apps, core := env.Informers.Apps().V1(), env.Informers.Core().V1()
	if err := controller.IndexByController(core.Pods().Informer()); err != nil {
		return nil, err
	}
	c := &statefulSets{
		client: env.Client, lister: apps.StatefulSets().Lister(), informer: apps.StatefulSets().Informer(),
		pods: core.Pods().Informer(), claims: core.PersistentVolumeClaims().Lister(),
		recorder: env.Recorder("statefulset-controller"), clock: env.Clock,
		OwnerExpectations: controller.NewOwnerExpectations(env.Clock, controller.MaxFailureDelay),
	}
	var err error
	if c.history, err = history.New(env.Client, env.Informers, &c.Versions); err != nil {
		return nil, err
	}
	c.addMetrics(env.Metrics)
	c.Controller = controller.New(env, "statefulset", c.reconcile)
	c.dependents = &controller.Dependents{Controller: c.Controller, Kind: Kind, Expected: c.Expected,
		Adopters: c.adopters}
	enqueue := func(s *appsv1.StatefulSet) { c.EnqueueObject(s) }
	controller.Watch(c.Controller, c.informer, controller.Handler[*appsv1.StatefulSet]{
		Add: enqueue, Update: func(_, s *appsv1.StatefulSet) { enqueue(s) }, Delete: enqueue,
	})
	controller.Watch(c.Controller, c.pods, controller.Handler[*corev1.Pod]{
		Add: func(pod *corev1.Pod) {
			c.dependents.Changed(pod)
		}, Update: c.podUpdated, Delete: func(pod *corev1.Pod) { c.dependents.Gone(pod) },
	})
	controller.Watch(c.Controller, core.PersistentVolumeClaims().Informer(),
		controller.Handler[*corev1.PersistentVolumeClaim]{})
	c.history.Watch(c.Controller, Kind)
	return c.Controller, nil
}

func (c *statefulSets) podUpdated(old, pod *corev1.Pod) {
	if old.UID != pod.UID {
		c.dependents.Gone(old)
	}
	if c.Failures.FailedSoon(pod) && !c.Failures.FailedSoon(old) {
		c.noteFailure(pod)
	}
	c.dependents.Moved(old, pod)
	if pod.DeletionTimestamp != nil {
		c.dependents.Gone(pod)
	}
	c.dependents.Changed(pod)
}

// noteFailure delays the replacement of a pod that failed soon after its start: the next one will probably fail too.
func (c *statefulSets) noteFailure(pod *corev1.Pod) {
	owner := metav1.GetControllerOf(pod)
	if owner == nil || owner.Kind != Kind.Kind {
		return
	}
	if set, err := c.lister.StatefulSets(pod.Namespace).Get(owner.Name); err == nil && set.UID == owner.UID {
		c.Failures.Failed(controller.KeyOf(set), pod.Name)
	}
}

// adopters enqueues the sets that have a pod with the name of the orphan.
func (c *statefulSets) adopters(orphan metav1.Object) {
	all, err := c.lister.StatefulSets(orphan.GetNamespace()).List(labels.Everything())
	if err != nil {
		return
	}
	for _, s := range all {
		if _, ok := ordinalOf(s, orphan.GetName()); ok {
			c.EnqueueObject(s)
		}
	}
}

// sync is one reconciliation of a set. set is a copy, whose status is updated and written at the end.
type sync struct {
	*statefulSets
	key  string
	set  *appsv1.StatefulSet
	pods []*corev1.Pod
	now  time.Time
	// current is the old revision of a rolling update, update the new one. They are equal when no update is in
	// progress.
	current, update *appsv1.ControllerRevision
	revisions       []*appsv1.ControllerRevision

	replicas  map[int]*corev1.Pod // existing pods, by ordinal minus the first ordinal
	condemned []*corev1.Pod       // pods of other ordinals, highest first
}

func (c *statefulSets) reconcile(ctx context.Context, key string) error {
	cached, ok := controller.SatisfiedOwner[*appsv1.StatefulSet](c.Controller, c.OwnerExpectations, c.informer, key)
	if !ok {
		return nil
	}
	selector, err := metav1.LabelSelectorAsSelector(cached.Spec.Selector)
	if err != nil {
		c.Log.Warn("cannot use an invalid selector", "key", key, "err", err)
		return nil
	}
	s := &sync{statefulSets: c, key: key, set: cached.DeepCopy(), now: c.clock.Now()}
	if s.pods, err = s.claimPods(ctx, selector); err != nil {
		return err
	}
	if err := s.syncRevisions(ctx, selector); err != nil {
		return err
	}
	s.assignOrdinals()
	var actErr error
	if s.set.DeletionTimestamp == nil {
		actErr = s.act(ctx)
	}
	return controller.FirstError(s.updateStatus(ctx, cached), actErr, s.truncateHistory(ctx))
}

func (s *sync) live(ctx context.Context) (metav1.Object, error) {
	return s.client().AppsV1().StatefulSets(s.set.Namespace).Get(ctx, s.set.Name, metav1.GetOptions{})
}

// claimPods returns the set's pods. It adopts matching orphans with names of the set's pods, and releases pods that no
// longer match.
func (s *sync) claimPods(ctx context.Context, selector labels.Selector) ([]*corev1.Pod, error) {
	all, err := controller.OwnedOrOrphaned[*corev1.Pod](s.statefulSets.pods, s.set)
	if err != nil {
		return nil, err
	}
	named := slices.DeleteFunc(all, func(pod *corev1.Pod) bool { _, ok := ordinalOf(s.set, pod.Name); return !ok })
	return controller.Claim(ctx, controller.Claimer{
		Owner: s.set, Kind: Kind, Selector: selector, Live: s.live,
		Patch: func(ctx context.Context, pod metav1.Object, patch []byte) error {
			_, err := s.client().CoreV1().Pods(s.set.Namespace).Patch(ctx, pod.GetName(), types.StrategicMergePatchType,
				patch, metav1.PatchOptions{})
			return err
		},
	}, named)
}

// syncRevisions sets update to the revision of the current template, which it creates if necessary, and current to the
// revision that the status names.
func (s *sync) syncRevisions(ctx context.Context, selector labels.Selector) (err error) {
	collisions := int32(0)
	if s.set.Status.CollisionCount != nil {
		collisions = *s.set.Status.CollisionCount
	}
	s.update, s.revisions, err = s.history.Sync(ctx, &history.Owner{
		Object: s.set, Kind: Kind, Selector: selector, Template: &s.set.Spec.Template,
		Collisions: &collisions, HashLabel: "controller.kubernetes.io/hash", Live: s.live,
	})
	if err != nil {
		return err
	}
	s.set.Status.CollisionCount = &collisions
	s.current = s.update
	for _, r := range s.revisions {
		if r.Name == s.set.Status.CurrentRevision {
			s.current = r
		}
	}
	s.set.Status.CurrentRevision, s.set.Status.UpdateRevision = s.current.Name, s.update.Name
	return nil
}

// truncateHistory deletes unused revisions beyond revisionHistoryLimit.
func (s *sync) truncateHistory(ctx context.Context) error {
	if s.set.Spec.RevisionHistoryLimit == nil {
		return nil
	}
	live := map[string]bool{s.set.Status.CurrentRevision: true, s.current.Name: true, s.update.Name: true}
	for _, pod := range s.pods {
		live[pod.Labels[appsv1.ControllerRevisionHashLabelKey]] = true
	}
	return s.history.Truncate(ctx, s.revisions, live, int(*s.set.Spec.RevisionHistoryLimit))
}
