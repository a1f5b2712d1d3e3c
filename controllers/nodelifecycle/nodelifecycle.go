// Package nodelifecycle detects which Nodes are alive, and keeps pods away from those that are not.
//
// In come Nodes and their heartbeats: a Lease in kube-node-lease that is renewed, or a status
// that is posted. Out go the conditions of Nodes that have fallen silent (Unknown), the taints
// that stand for conditions (NoSchedule at once; NoExecute at a limited rate, zone by zone),
// pods that are no longer ready because their Node is not, and the events NodeNotReady and
// RegisteredNode. Which pods must leave a tainted Node, and when, is decided by tainteviction.
//
// How a silent Node is detected is in health.go, the handling of many silent ones in zones.go,
// and the writes in writes.go.
// https://kubernetes.io/docs/concepts/architecture/nodes/#node-controller
package nodelifecycle

import (
	"context"
	"errors"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	coordinationlisters "k8s.io/client-go/listers/coordination/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// all is the key of the round that checks the health of every Node; other keys are Nodes'
// names, which have no slash.
const all = "/all"

type lifecycle struct {
	*controller.Controller
	client   func() kubernetes.Interface
	nodes    corelisters.NodeLister
	leases   coordinationlisters.LeaseLister
	pods     cache.SharedIndexInformer
	recorder record.EventRecorder
	clock    clock.WithTicker
	settings controller.NodeSettings

	// What the rounds know beside the API: when each Node was heard of last, by our own clock.
	// A restart begins anew, which gives every Node the grace period again. Only the round
	// touches it, and rounds never overlap.
	health    map[string]*health
	zones     map[string]*zone
	disrupted bool // no zone has a Node that is ready

	// real is by which the controller tells that it was away. A clock that is moved by hand jumps from round to round.
	real      clock.PassiveClock
	lastRound time.Time // by real
}

// New returns the controller. Its keys are Nodes, and one for all of them.
func New(env *controller.Env) (*controller.Controller, error) {
	l, err := newLifecycle(env)
	if err != nil {
		return nil, err
	}
	core, leases := env.Informers.Core().V1(), env.Informers.Coordination().V1().Leases()
	controller.Watch(l.Controller, core.Nodes().Informer(), controller.Handler[*corev1.Node]{
		Add: func(node *corev1.Node) { l.EnqueueObject(node) },
		Update: func(old, node *corev1.Node) {
			if old.Spec.Unschedulable != node.Spec.Unschedulable || !equality.Semantic.DeepEqual(old.Spec.Taints,
				node.Spec.Taints) || conditionsDiffer(old, node) {
				l.EnqueueObject(node)
			}
		},
	})
	controller.Watch(l.Controller, leases.Informer(), controller.Handler[*coordinationv1.Lease]{})
	controller.Watch(l.Controller, l.pods, controller.Handler[*corev1.Pod]{
		Update: func(old, pod *corev1.Pod) {
			if pod.Spec.NodeName != old.Spec.NodeName { // to a Node that may not be ready
				l.Enqueue(pod.Spec.NodeName)
			}
		},
	})
	l.Enqueue(all)
	return l.Controller, nil
}

func newLifecycle(env *controller.Env) (*lifecycle, error) {
	core := env.Informers.Core().V1()
	l := &lifecycle{
		client: env.Client, nodes: core.Nodes().Lister(), leases: env.Informers.Coordination().V1().Leases().Lister(),
		pods:     core.Pods().Informer(),
		recorder: env.Recorder("node-controller"), clock: env.Clock, settings: env.Settings.Node,
		real: clock.RealClock{}, health: map[string]*health{}, zones: map[string]*zone{},
	}
	l.Controller = controller.New(env, "nodelifecycle", l.reconcile)
	return l, controller.IndexByNode(l.pods)
}

func conditionsDiffer(old, node *corev1.Node) bool {
	for t := range taintByCondition {
		if statusOf(old, t) != statusOf(node, t) {
			return true
		}
	}
	return false
}

func (l *lifecycle) reconcile(ctx context.Context, key string) error {
	if key == all {
		l.EnqueuePeriodic(all, l.settings.MonitorPeriod)
		return l.round(ctx)
	}
	node, err := l.nodes.Get(key)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := l.taintByConditions(ctx, node); err != nil {
		return err
	}
	if ready := condition(node, corev1.NodeReady); ready != nil && ready.Status != corev1.ConditionTrue {
		return l.podsNotReady(ctx, node)
	}
	return nil
}

// round checks every Node once: is it heard of, what is the state of its zone, and which of
// those that are not ready may be given up now.
func (l *lifecycle) round(ctx context.Context) error {
	nodes, err := l.nodes.List(labels.Everything())
	if err != nil {
		return err
	}
	now, real := l.clock.Now(), l.real.Now()
	if !l.lastRound.IsZero() && real.Sub(l.lastRound) > l.settings.MonitorGracePeriod/2 {
		// This controller was away: silence meanwhile shows nothing about the Nodes.
		l.Log.Info("no round for a while: every node is given its grace period again", "since", l.lastRound)
		l.hearAll(now)
	}
	l.lastRound = real
	l.forget(nodes)
	var errs []error
	for i, node := range nodes {
		seen, err := l.listen(ctx, node, now)
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
		nodes[i] = seen
	}
	l.judgeZones(nodes, now)
	for _, node := range nodes {
		if err := l.taintForEviction(ctx, node, now); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// forget drops what is known of Nodes and zones that are gone.
func (l *lifecycle) forget(nodes []*corev1.Node) {
	names, zones := map[string]bool{}, map[string]bool{}
	for _, node := range nodes {
		names[node.Name] = true
		zones[zoneOf(node)] = true
	}
	for name, h := range l.health {
		if !names[name] {
			l.recorder.Eventf(&corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: name, UID: h.uid},
				corev1.EventTypeNormal,
				"RemovingNode", "Node %s event: Removing Node %s from Controller", name, name)
			delete(l.health, name)
		}
	}
	for name := range l.zones {
		if !zones[name] {
			delete(l.zones, name)
		}
	}
}
