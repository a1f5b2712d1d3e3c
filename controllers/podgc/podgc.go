// Package podgc deletes pods that no other component deletes: orphans on Nodes that no longer exist, terminating pods
// that were never scheduled or are on a Node that is declared out of service, and terminated pods above a threshold
// (--terminated-pod-gc-threshold).
package podgc

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

const (
	// period is the time between two rounds.
	period = 20 * time.Second
	// quarantine is how long a Node must be missing before its pods count as orphans: the Node may come back.
	quarantine = 40 * time.Second
	all        = "all" // the only key
)

type podGC struct {
	*controller.Controller
	client func() kubernetes.Interface
	pods   corelisters.PodLister
	nodes  corelisters.NodeLister
	clock  clock.PassiveClock
	*metrics
	// threshold is the number of terminated pods that are kept; 0 keeps all.
	threshold int
	// missing records since when the cache has lacked each Node that pods name. A restart starts the quarantine again.
	// Only the one worker accesses it.
	missing map[string]time.Time
}

// New returns the controller. Its only key is reconciled periodically.
func New(env *controller.Env) (*controller.Controller, error) {
	core := env.Informers.Core().V1()
	g := &podGC{
		client: env.Client, pods: core.Pods().Lister(), nodes: core.Nodes().Lister(), clock: env.Clock,
		metrics:   newMetrics(env.Metrics),
		threshold: *env.Settings.TerminatedPodThreshold, missing: map[string]time.Time{},
	}
	g.Controller = controller.New(env, "podgc", g.reconcile)
	controller.Watch(g.Controller, core.Pods().Informer(), controller.Handler[*corev1.Pod]{})
	controller.Watch(g.Controller, core.Nodes().Informer(), controller.Handler[*corev1.Node]{})
	g.Enqueue(all)
	return g.Controller, nil
}

func (g *podGC) reconcile(ctx context.Context, _ string) error {
	defer g.EnqueuePeriodic(all, period)
	pods, err := g.pods.List(labels.Everything())
	if err != nil {
		return err
	}
	orphans, err := g.orphans(ctx, pods)
	if err != nil {
		return err
	}
	errs := make([]error, len(orphans))
	controller.InParallel(len(orphans), func(i int) {
		errs[i] = g.count(orphans[i], "orphaned", g.endOrphan(ctx, orphans[i]))
	})
	for _, pod := range pods {
		switch {
		case pod.DeletionTimestamp == nil:
		case pod.Spec.NodeName == "":
			errs = append(errs, g.count(pod, "unscheduled", g.end(ctx, pod, nil)))
		case g.outOfService(pod.Spec.NodeName):
			errs = append(errs, g.count(pod, "out-of-service", g.end(ctx, pod, nil)))
		}
	}
	for _, pod := range surplus(pods, g.threshold) {
		errs = append(errs, g.count(pod, "terminated", g.delete(ctx, pod)))
	}
	return errors.Join(errs...)
}

// orphans returns the pods whose Node has been missing for the quarantine. The API server must confirm that the Node
// does not exist, since the cache may be behind.
func (g *podGC) orphans(ctx context.Context, pods []*corev1.Pod) ([]*corev1.Pod, error) {
	seen := map[string]bool{}
	missing := map[string]bool{}
	var orphans []*corev1.Pod
	for _, pod := range pods {
		name := pod.Spec.NodeName
		if name == "" {
			continue
		}
		if !seen[name] {
			seen[name] = true
			isGone, err := g.isGone(ctx, name)
			if err != nil {
				return nil, err
			}
			missing[name] = isGone
		}
		if missing[name] {
			orphans = append(orphans, pod)
		}
	}
	for name := range g.missing {
		if !seen[name] {
			delete(g.missing, name)
		}
	}
	return orphans, nil
}

// isGone reports whether a Node has been missing for the quarantine and the API server does not have it either. It
// records in g.missing when a Node was first missed.
func (g *podGC) isGone(ctx context.Context, node string) (bool, error) {
	if _, err := g.nodes.Get(node); err == nil {
		delete(g.missing, node)
		return false, nil
	}
	since, ok := g.missing[node]
	if !ok {
		g.missing[node] = g.clock.Now()
		return false, nil
	}
	if g.clock.Since(since) < quarantine {
		return false, nil
	}
	_, err := g.client().CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	return false, err
}

// outOfService reports whether a Node is not ready and has the taint out-of-service, which declares that
// no pod runs on it any more.
// https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/#non-graceful-node-shutdown
func (g *podGC) outOfService(name string) bool {
	node, err := g.nodes.Get(name)
	return err == nil &&
		slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
			return t.Key == corev1.TaintNodeOutOfService
		}) &&
		!slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
}

// endOrphan fails and deletes a pod whose Node no longer exists, with the condition DisruptionTarget.
func (g *podGC) endOrphan(ctx context.Context, pod *corev1.Pod) error {
	return g.end(ctx, pod, &corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByPodGC",
		Message: "PodGC: node no longer exists", LastTransitionTime: metav1.NewTime(g.clock.Now()),
		ObservedGeneration: pod.Generation,
	})
}

// end sets the phase of a pod to Failed, since no agent will report its end, and deletes it. The condition gives the
// reason; it may be nil.
func (g *podGC) end(ctx context.Context, pod *corev1.Pod, condition *corev1.PodCondition) error {
	if !controller.PodEnded(pod) {
		err := g.fail(ctx, pod, condition)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("end pod %s: %w", controller.KeyOf(pod), err)
		}
	}
	return g.delete(ctx, pod)
}

// fail patches the status, because the role of the pod garbage collector allows no other write. The uid and the
// resourceVersion make the patch fail if the pod differs from the cached one.
func (g *podGC) fail(ctx context.Context, pod *corev1.Pod, condition *corev1.PodCondition) error {
	status := map[string]any{"phase": corev1.PodFailed}
	if condition != nil {
		status["conditions"] = []*corev1.PodCondition{condition}
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID, "resourceVersion": pod.ResourceVersion},
		"status":   status,
	})
	if err != nil {
		return err
	}
	_, err = g.client().CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status")
	return err
}

// delete deletes the pod with this uid at once, without a grace period. A pod that no longer exists is no error.
func (g *podGC) delete(ctx context.Context, pod *corev1.Pod) error {
	o := metav1.NewPreconditionDeleteOptions(string(pod.UID))
	o.GracePeriodSeconds = new(int64)
	err := g.client().CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, *o)
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return fmt.Errorf("delete pod %s: %w", controller.KeyOf(pod), err)
}

// surplus returns the terminated pods above the threshold. Evicted pods come first, then the oldest.
func surplus(pods []*corev1.Pod, threshold int) []*corev1.Pod {
	if threshold <= 0 {
		return nil
	}
	var ended []*corev1.Pod
	for _, pod := range pods {
		if controller.PodEnded(pod) && pod.DeletionTimestamp == nil {
			ended = append(ended, pod)
		}
	}
	if len(ended) <= threshold {
		return nil
	}
	rank := func(pod *corev1.Pod) int {
		if pod.Status.Reason == "Evicted" {
			return 0
		}
		return 1
	}
	slices.SortFunc(ended, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			cmp.Compare(a.Name, b.Name))
	})
	return ended[:len(ended)-threshold]
}
