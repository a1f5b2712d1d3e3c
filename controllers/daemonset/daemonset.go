// Package daemonset keeps one pod on each Node that matches a DaemonSet's template.
//
// Its input is a DaemonSet, the Nodes, and the set's pods and revisions. Its output is pods, the status and
// Events. The scheduler binds a pod to the Node in the pod's affinity. The files:
//
//	daemonset.go  the controller's watches, and one sync of a set
//	placement.go  which Nodes should have a pod, and which may keep theirs
//	scale.go      creating and deleting pods
//	update.go     moving pods to the next template: RollingUpdate with its two budgets, OnDelete
//	status.go     the status
package daemonset

import (
	"context"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
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
var Kind = appsv1.SchemeGroupVersion.WithKind("DaemonSet")

type daemonSets struct {
	*controller.Controller
	*controller.OwnerExpectations
	client     func() kubernetes.Interface
	lister     appslisters.DaemonSetLister
	informer   cache.SharedIndexInformer
	pods       cache.SharedIndexInformer
	nodes      corelisters.NodeLister
	history    *history.History
	recorder   record.EventRecorder
	clock      clock.PassiveClock
	dependents *controller.Dependents
}

// New returns the controller.
func New(env *controller.Env) (*controller.Controller, error) {
	apps, core := env.Informers.Apps().V1(), env.Informers.Core().V1()
	if err := controller.IndexByController(core.Pods().Informer()); err != nil {
		return nil, err
	}
	c := &daemonSets{
		client: env.Client, lister: apps.DaemonSets().Lister(), informer: apps.DaemonSets().Informer(),
		pods: core.Pods().Informer(), nodes: core.Nodes().Lister(), recorder: env.Recorder("daemonset-controller"),
		clock: env.Clock, OwnerExpectations: controller.NewOwnerExpectations(env.Clock, maxFailureDelay),
	}
	var err error
	if c.history, err = history.New(env.Client, env.Informers, &c.Versions); err != nil {
		return nil, err
	}
	c.Controller = controller.New(env, "daemonset", c.reconcile)
	c.dependents = &controller.Dependents{Controller: c.Controller, Kind: Kind, Expected: c.Expected,
		Adopters: controller.Adopters(c.Controller,
			func(namespace string) ([]*appsv1.DaemonSet, error) {
				return c.lister.DaemonSets(namespace).List(labels.Everything())
			},
			func(d *appsv1.DaemonSet) *metav1.LabelSelector { return d.Spec.Selector })}
	wake := func(d *appsv1.DaemonSet) { c.EnqueueObject(d) }
	controller.Watch(c.Controller, c.informer, controller.Handler[*appsv1.DaemonSet]{
		Add: wake, Update: func(_, d *appsv1.DaemonSet) { wake(d) }, Delete: wake,
	})
	controller.Watch(c.Controller, c.pods, controller.Handler[*corev1.Pod]{
		Add: func(pod *corev1.Pod) {
			c.dependents.Changed(pod)
		}, Update: c.podUpdated, Delete: func(pod *corev1.Pod) { c.dependents.Gone(pod) },
	})
	controller.Watch(c.Controller, core.Nodes().Informer(), controller.Handler[*corev1.Node]{
		Add: func(*corev1.Node) { c.enqueueAll() }, Delete: func(*corev1.Node) { c.enqueueAll() },
		Update: func(old, n *corev1.Node) {
			// Changes of the status, such as heartbeats, do not affect placement.
			if !equality.Semantic.DeepEqual(old.Labels, n.Labels) || !equality.Semantic.DeepEqual(old.Spec.Taints,
				n.Spec.Taints) {
				c.enqueueAll()
			}
		},
	})
	c.history.Watch(c.Controller, Kind)
	return c.Controller, nil
}

func (c *daemonSets) enqueueAll() {
	all, err := c.lister.List(labels.Everything())
	if err != nil {
		return
	}
	for _, d := range all {
		c.EnqueueObject(d)
	}
}

func (c *daemonSets) podUpdated(old, pod *corev1.Pod) {
	if old.UID != pod.UID {
		c.dependents.Gone(old)
	}
	c.dependents.Moved(old, pod)
	if pod.DeletionTimestamp != nil {
		c.dependents.Gone(pod)
		return
	}
	c.dependents.Changed(pod)
}

// sync is the state of one reconciliation. The set in it is a copy, and its status is written at the end.
type sync struct {
	*daemonSets
	key       string
	set       *appsv1.DaemonSet
	now       time.Time
	nodes     []*corev1.Node
	byNode    map[string][]*corev1.Pod // by nodeOf, so also pods that are not bound yet
	hash      string                   // of the template
	update    *appsv1.ControllerRevision
	revisions []*appsv1.ControllerRevision
}

func (c *daemonSets) reconcile(ctx context.Context, key string) error {
	cached, ok := controller.SatisfiedOwner[*appsv1.DaemonSet](c.Controller, c.OwnerExpectations, c.informer, key)
	if !ok {
		return nil
	}
	if equality.Semantic.DeepEqual(cached.Spec.Selector, &metav1.LabelSelector{}) {
		c.recorder.Event(cached, corev1.EventTypeWarning, "SelectingAll",
			"This daemon set is selecting all pods. A non-empty selector is required.")
		return nil
	}
	if cached.DeletionTimestamp != nil {
		return nil
	}
	s := &sync{daemonSets: c, key: key, set: cached.DeepCopy(), now: c.clock.Now()}
	if err := s.observe(ctx); err != nil {
		return err
	}
	scaleErr := s.scale(ctx)
	if scaleErr == nil && c.Expected.Satisfied(key) && c.Versions.Satisfied(key) {
		scaleErr = s.roll(ctx)
	}
	return controller.FirstError(s.updateStatus(ctx, cached), scaleErr, s.truncateHistory(ctx))
}

// observe reads the Nodes, revisions and pods that the sync depends on.
func (s *sync) observe(ctx context.Context) error {
	selector, err := metav1.LabelSelectorAsSelector(s.set.Spec.Selector)
	if err != nil {
		return err
	}
	if s.nodes, err = s.daemonSets.nodes.List(labels.Everything()); err != nil {
		return err
	}
	collisions := int32(0)
	if s.set.Status.CollisionCount != nil {
		collisions = *s.set.Status.CollisionCount
	}
	live := func(ctx context.Context) (metav1.Object, error) {
		return s.client().AppsV1().DaemonSets(s.set.Namespace).Get(ctx, s.set.Name, metav1.GetOptions{})
	}
	s.update, s.revisions, err = s.history.Sync(ctx, &history.Owner{
		Object: s.set, Kind: Kind, Selector: selector, Template: &s.set.Spec.Template,
		Collisions: &collisions, HashLabel: appsv1.DefaultDaemonSetUniqueLabelKey, Live: live,
	})
	if err != nil {
		return err
	}
	if collisions > 0 {
		s.set.Status.CollisionCount = &collisions
	}
	s.hash = s.update.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]
	all, err := controller.OwnedOrOrphaned[*corev1.Pod](s.daemonSets.pods, s.set)
	if err != nil {
		return err
	}
	pods, err := controller.Claim(ctx, controller.Claimer{
		Owner: s.set, Kind: Kind, Selector: selector, Live: live,
		Patch: func(ctx context.Context, pod metav1.Object, patch []byte) error {
			_, err := s.client().CoreV1().Pods(s.set.Namespace).Patch(ctx, pod.GetName(), types.StrategicMergePatchType,
				patch, metav1.PatchOptions{})
			return err
		},
	}, all)
	if err != nil {
		return err
	}
	s.byNode = map[string][]*corev1.Pod{}
	for _, pod := range pods {
		if node := nodeOf(pod); node != "" {
			s.byNode[node] = append(s.byNode[node], pod)
		}
	}
	return nil
}

// truncateHistory deletes the oldest revisions without pods, beyond revisionHistoryLimit.
func (s *sync) truncateHistory(ctx context.Context) error {
	if s.set.Spec.RevisionHistoryLimit == nil {
		return nil
	}
	hashes := map[string]bool{s.hash: true}
	for _, pods := range s.byNode {
		for _, pod := range pods {
			hashes[pod.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]] = true
		}
	}
	live := map[string]bool{}
	for _, r := range s.revisions {
		live[r.Name] = hashes[r.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]]
	}
	return s.history.Truncate(ctx, s.revisions, live, int(*s.set.Spec.RevisionHistoryLimit))
}
