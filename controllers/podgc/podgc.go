// Package podgc deletes pods that nothing else would: those of Nodes that are gone, terminating ones that are on Nodes
// declared out of service or were never scheduled, and ended ones beyond a number that is enough for inspection.
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
	// quarantine is how long a Node must have been missing before its pods are: it may be coming back.
	quarantine = 40 * time.Second
	all        = "all" // the only key
)

type podGC struct {
	*controller.Controller
	client func() kubernetes.Interface
	pods   corelisters.PodLister
	nodes  corelisters.NodeLister
	clock  clock.PassiveClock
	most   int // ended pods that may stay
	// missing has the Nodes that pods name and that are not there, and since when that is
	// known. A restart begins the quarantine anew. Only the one worker touches it.
	missing map[string]time.Time
}

// New returns the controller. Its only key is reconciled periodically.
func New(env *controller.Env) (*controller.Controller, error) {
	core := env.Informers.Core().V1()
	g := &podGC{
		client: env.Client, pods: core.Pods().Lister(), nodes: core.Nodes().Lister(), clock: env.Clock,
		most: *env.Settings.TerminatedPodThreshold, missing: map[string]time.Time{},
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
	controller.InParallel(len(orphans), func(i int) { errs[i] = g.endOrphan(ctx, orphans[i]) })
	for _, pod := range pods {
		if pod.DeletionTimestamp != nil && (pod.Spec.NodeName == "" || g.outOfService(pod.Spec.NodeName)) {
			errs = append(errs, g.end(ctx, pod, nil))
		}
	}
	for _, pod := range surplus(pods, g.most) {
		errs = append(errs, g.delete(ctx, pod))
	}
	return errors.Join(errs...)
}

// orphans are the pods of Nodes that have been missing for long enough, as the API server
// says too: the cache may be behind.
func (g *podGC) orphans(ctx context.Context, pods []*corev1.Pod) ([]*corev1.Pod, error) {
	seen := map[string]bool{}
	gone := map[string]bool{}
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
			gone[name] = isGone
		}
		if gone[name] {
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

func (g *podGC) isGone(ctx context.Context, node string) (bool, error) {
	if _, err := g.nodes.Get(node); err == nil {
		delete(g.missing, node)
		return false, nil
	}
	since, known := g.missing[node]
	if !known {
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
// nothing runs on it any more.
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

// endOrphan ends a pod whose Node is gone.
func (g *podGC) endOrphan(ctx context.Context, pod *corev1.Pod) error {
	return g.end(ctx, pod, &corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByPodGC",
		Message: "PodGC: node no longer exists", LastTransitionTime: metav1.NewTime(g.clock.Now()),
		ObservedGeneration: pod.Generation,
	})
}

// end writes the end of a pod that no agent will report, with the condition that says why if there is one, and
// deletes it.
func (g *podGC) end(ctx context.Context, pod *corev1.Pod, why *corev1.PodCondition) error {
	if !controller.PodEnded(pod) {
		err := g.fail(ctx, pod, why)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("end pod %s: %w", controller.KeyOf(pod), err)
		}
	}
	return g.delete(ctx, pod)
}

// fail patches the status, since pod garbage collection has the right to patch it and no other. The version makes
// it fail where the pod is not what the cache shows.
func (g *podGC) fail(ctx context.Context, pod *corev1.Pod, why *corev1.PodCondition) error {
	status := map[string]any{"phase": corev1.PodFailed}
	if why != nil {
		status["conditions"] = []*corev1.PodCondition{why}
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

func (g *podGC) delete(ctx context.Context, pod *corev1.Pod) error {
	o := metav1.NewPreconditionDeleteOptions(string(pod.UID))
	o.GracePeriodSeconds = new(int64)
	err := g.client().CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, *o)
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return fmt.Errorf("delete pod %s: %w", controller.KeyOf(pod), err)
}

// surplus are the ended pods beyond those that may stay: first those that were evicted, then the oldest.
func surplus(pods []*corev1.Pod, most int) []*corev1.Pod {
	if most <= 0 {
		return nil
	}
	var ended []*corev1.Pod
	for _, pod := range pods {
		if controller.PodEnded(pod) && pod.DeletionTimestamp == nil {
			ended = append(ended, pod)
		}
	}
	if len(ended) <= most {
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
	return ended[:len(ended)-most]
}
