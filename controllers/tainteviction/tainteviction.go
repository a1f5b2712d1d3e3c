// Package tainteviction deletes pods from Nodes with NoExecute taints. A pod that does not tolerate a taint is deleted
// at once, a pod that tolerates it for a limited time after tolerationSeconds.
//
// Its inputs are Nodes with their taints and the pods on them. It deletes pods, and writes their condition
// DisruptionTarget and the event TaintManagerEviction. The deadline of a pod depends only on the taint and the pod, so
// that a restart loses no deadline. The exception is a taint without timeAdded, which counts from its first sighting.
// https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/#taint-based-evictions
package tainteviction

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

type evictions struct {
	*controller.Controller
	client   func() kubernetes.Interface
	nodes    corelisters.NodeLister
	pods     corelisters.PodLister
	onNode   cache.SharedIndexInformer
	recorder record.EventRecorder
	clock    clock.PassiveClock

	deletions func() *prometheus.CounterVec
	delay     func() *prometheus.HistogramVec

	mu sync.Mutex
	// seen records when each taint without timeAdded was first seen.
	seen map[seenTaint]time.Time
	// waiting has the keys of the pods with a scheduled eviction, for the event that reports its cancellation.
	waiting map[string]bool
}

type seenTaint struct{ node, key, value string }

// New returns the controller. Its keys are pods.
func New(env *controller.Env) (*controller.Controller, error) {
	core := env.Informers.Core().V1()
	e := &evictions{
		client: env.Client, nodes: core.Nodes().Lister(), pods: core.Pods().Lister(), onNode: core.Pods().Informer(),
		recorder: env.Recorder("taint-eviction-controller"), clock: env.Clock,
		deletions: env.Metrics.Counter("taint_eviction_controller_pod_deletions_total",
			"Total number of Pods deleted by TaintEvictionController since its start."),
		delay: env.Metrics.Histogram("taint_eviction_controller_pod_deletion_duration_seconds",
			"Latency, in seconds, between the time when a taint effect has been activated for the Pod and its "+
				"deletion via TaintEvictionController.",
			[]float64{0.005, 0.025, 0.1, 0.5, 1, 2.5, 10, 30, 60, 120, 180, 240}),
		seen: map[seenTaint]time.Time{}, waiting: map[string]bool{},
	}
	if err := controller.IndexByNode(e.onNode); err != nil {
		return nil, err
	}
	e.Controller = controller.New(env, "taint-eviction", e.reconcile)
	controller.Watch(e.Controller, core.Nodes().Informer(), controller.Handler[*corev1.Node]{
		Add: func(node *corev1.Node) { e.nodeChanged(node, nil, noExecute(node)) },
		Update: func(old, node *corev1.Node) {
			if before, after := noExecute(old), noExecute(node); !equality.Semantic.DeepEqual(before, after) {
				e.nodeChanged(node, before, after)
			}
		},
		Delete: func(node *corev1.Node) { e.nodeChanged(node, noExecute(node), nil) },
	})
	controller.Watch(e.Controller, e.onNode, controller.Handler[*corev1.Pod]{
		Add: func(pod *corev1.Pod) { e.podChanged(pod) },
		Update: func(old, pod *corev1.Pod) {
			if old.Spec.NodeName != pod.Spec.NodeName || !equality.Semantic.DeepEqual(old.Spec.Tolerations,
				pod.Spec.Tolerations) {
				e.podChanged(pod)
			}
		},
		Delete: func(pod *corev1.Pod) { e.Enqueue(controller.KeyOf(pod)) },
	})
	return e.Controller, nil
}

func noExecute(node *corev1.Node) []corev1.Taint {
	var taints []corev1.Taint
	for _, t := range node.Spec.Taints {
		if t.Effect == corev1.TaintEffectNoExecute {
			taints = append(taints, t)
		}
	}
	return taints
}

// nodeChanged records the time of new taints, drops removed ones, and enqueues every pod of the Node.
func (e *evictions) nodeChanged(node *corev1.Node, before, after []corev1.Taint) {
	if len(before) == 0 && len(after) == 0 {
		return
	}
	e.mu.Lock()
	now := e.now()
	for _, t := range before {
		if !slices.ContainsFunc(after, func(u corev1.Taint) bool { return t.Key == u.Key && t.Value == u.Value }) {
			delete(e.seen, seenTaint{node.Name, t.Key, t.Value})
		}
	}
	for _, t := range after {
		if _, ok := e.seen[seenTaint{node.Name, t.Key, t.Value}]; !ok && t.TimeAdded == nil {
			e.seen[seenTaint{node.Name, t.Key, t.Value}] = now
		}
	}
	e.mu.Unlock()
	pods, err := controller.OnNode(e.onNode, node.Name)
	if err != nil {
		panic("taint-eviction: the pods' index is missing: " + err.Error())
	}
	for _, pod := range pods {
		e.EnqueueObject(pod)
	}
}

// podChanged enqueues a pod on a Node with NoExecute taints.
func (e *evictions) podChanged(pod *corev1.Pod) {
	if pod.Spec.NodeName == "" {
		return
	}
	node, err := e.nodes.Get(pod.Spec.NodeName)
	if err == nil && len(noExecute(node)) > 0 {
		e.EnqueueObject(pod)
	}
}

func (e *evictions) reconcile(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return nil // the key has another format
	}
	pod, err := e.pods.Pods(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		e.cancel(key)
		return nil
	}
	if err != nil {
		return err
	}
	if pod.Spec.NodeName == "" || !controller.PodActive(pod) {
		e.cancel(key)
		return nil
	}
	node, err := e.nodes.Get(pod.Spec.NodeName)
	if apierrors.IsNotFound(err) {
		return nil // the pod garbage collector deletes the pod
	}
	if err != nil {
		return err
	}
	now := e.now()
	deadline, evict := e.deadline(node, pod, now)
	switch {
	case !evict:
		if e.cancel(key) {
			e.recorder.Eventf(pod, corev1.EventTypeNormal, "TaintManagerEviction", "Cancelling deletion of Pod %s", key)
		}
		return nil
	case deadline.After(now):
		e.mu.Lock()
		e.waiting[key] = true
		e.mu.Unlock()
		e.EnqueueAt(key, deadline)
		return nil
	}
	e.cancel(key)
	return e.evict(ctx, pod, now, deadline)
}

// now returns the wall time, without a monotonic reading. Deadlines are wall times, since the times of taints and pods
// are.
func (e *evictions) now() time.Time { return e.clock.Now().Round(0) }

// cancel cancels the scheduled eviction of a pod, and reports whether there was one.
func (e *evictions) cancel(key string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	scheduled := e.waiting[key]
	delete(e.waiting, key)
	return scheduled
}

// deadline returns the time of the pod's eviction; evict is false if it may stay. A toleration with
// tolerationSeconds begins when both the taint is added and the pod is bound to the Node. The shortest one counts.
func (e *evictions) deadline(node *corev1.Node, pod *corev1.Pod, now time.Time) (deadline time.Time, evict bool) {
	bound := boundAt(pod)
	for _, taint := range noExecute(node) {
		since := e.since(node, taint, now)
		if bound.After(since) {
			since = bound
		}
		tolerated := false
		for i := range pod.Spec.Tolerations {
			t := &pod.Spec.Tolerations[i]
			if !t.ToleratesTaint(klog.Background(), &taint, false) {
				continue
			}
			tolerated = true
			if t.TolerationSeconds == nil {
				continue
			}
			until := since.Add(controller.Seconds(max(*t.TolerationSeconds, 0)))
			if !evict || until.Before(deadline) {
				deadline, evict = until, true
			}
		}
		if !tolerated {
			return now, true
		}
	}
	return deadline, evict
}

// since returns when the taint was added to the Node, or first seen there.
func (e *evictions) since(node *corev1.Node, taint corev1.Taint, now time.Time) time.Time {
	if taint.TimeAdded != nil {
		return taint.TimeAdded.Time
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if first, ok := e.seen[seenTaint{node.Name, taint.Key, taint.Value}]; ok {
		return first
	}
	return now
}

// boundAt returns when the pod was bound to its Node, or its creation time if that is unknown.
func boundAt(pod *corev1.Pod) time.Time {
	if c := controller.PodCondition(pod, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionTrue &&
		!c.LastTransitionTime.IsZero() {
		return c.LastTransitionTime.Time
	}
	return pod.CreationTimestamp.Time
}

// evict sets the condition DisruptionTarget on a pod and deletes it. The pod was due at deadline.
func (e *evictions) evict(ctx context.Context, pod *corev1.Pod, now, deadline time.Time) error {
	e.recorder.Eventf(pod, corev1.EventTypeNormal, "TaintManagerEviction", "Marking for deletion Pod %s",
		controller.KeyOf(pod))
	marked := pod.DeepCopy()
	condition := corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
		Reason:  "DeletionByTaintManager",
		Message: "Taint manager: deleting due to NoExecute taint", LastTransitionTime: metav1.NewTime(now)}
	if c := controller.PodCondition(marked, corev1.DisruptionTarget); c == nil {
		marked.Status.Conditions = append(marked.Status.Conditions, condition)
	} else if c.Status != corev1.ConditionTrue || c.Reason != condition.Reason {
		*c = condition
	}
	pods := e.client().CoreV1().Pods(pod.Namespace)
	if _, err := pods.UpdateStatus(ctx, marked, metav1.UpdateOptions{}); apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return err
	}
	err := pods.Delete(ctx, pod.Name, *metav1.NewPreconditionDeleteOptions(string(pod.UID)))
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // the pod no longer exists, or another pod has its name
	}
	if err == nil {
		e.deletions().WithLabelValues().Inc()
		e.delay().WithLabelValues().Observe(e.now().Sub(deadline).Seconds())
	}
	return err
}
