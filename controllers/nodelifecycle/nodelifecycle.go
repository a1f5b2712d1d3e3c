// Package nodelifecycle monitors the health of Nodes and keeps pods away from Nodes that are not ready.
//
// Its inputs are Nodes and their heartbeats: a renewed Lease in kube-node-lease, or a posted status. It writes
//
//   - the status Unknown into the conditions of a Node without heartbeats,
//   - the taints for conditions: NoSchedule at once, NoExecute at a limited rate for each zone,
//   - the condition Ready=False of the pods on a Node that is not ready,
//   - the events RegisteredNode, NodeNotReady and RemovingNode.
//
// The package tainteviction decides which pods must leave a tainted Node, and when.
//
// health.go detects missing heartbeats, zones.go limits evictions when many Nodes are unhealthy, writes.go has the
// writes, metrics.go the metrics.
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

// all is the key of the round that checks the health of every Node. The other keys are names of Nodes, which contain no
// slash.
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
	metrics  *metrics

	// The state of the rounds that is not in the API: the time of each Node's last heartbeat, by this process' clock,
	// and the zones. It is lost at a restart, which gives every Node the full grace period again. Only the round
	// accesses it, and rounds never overlap.
	health    map[string]*health
	zones     map[string]*zone
	disrupted bool // no zone has a Node that is ready

	// real measures the time between rounds, to detect that this process was suspended. clock cannot measure it: a
	// fake clock jumps from round to round.
	real      clock.PassiveClock
	lastRound time.Time // as read from real
}

// New returns the controller. Its keys are the names of Nodes, and the constant all.
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
		metrics: newMetrics(env.Metrics),
		real:    clock.RealClock{}, health: map[string]*health{}, zones: map[string]*zone{},
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

// round checks every Node once: it records heartbeats, sets the state of each zone, and taints the Nodes that are not
// ready for eviction, as far as the rate of their zone allows.
func (l *lifecycle) round(ctx context.Context) error {
	nodes, err := l.nodes.List(labels.Everything())
	if err != nil {
		return err
	}
	now, real := l.clock.Now(), l.real.Now()
	if !l.lastRound.IsZero() && real.Sub(l.lastRound) > l.settings.MonitorGracePeriod/2 {
		// This process was suspended, so missing heartbeats do not mean that a Node is unhealthy.
		l.Log.Info("no round for a while: restart every node's grace period", "since", l.lastRound)
		l.renewAll(now)
	}
	l.lastRound = real
	l.forget(nodes)
	var errs []error
	for i, node := range nodes {
		began := l.clock.Now()
		updated, err := l.observe(ctx, node, now)
		l.metrics.node().WithLabelValues().Observe(l.clock.Since(began).Seconds())
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
		nodes[i] = updated
	}
	l.updateZones(nodes, now)
	for _, node := range nodes {
		if err := l.taintForEviction(ctx, node, now); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	l.metrics.round().WithLabelValues().Observe(l.clock.Since(now).Seconds())
	return errors.Join(errs...)
}

// forget drops the state of Nodes and zones that no longer exist, with an event for each Node.
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
			l.metrics.forget(name)
		}
	}
}
