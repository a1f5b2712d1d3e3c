// Package disruption keeps the status of PodDisruptionBudgets: how many pods are expected, how many are
// healthy, and how many may be evicted now. The API server's eviction subresource uses up the evictions that
// this controller allows.
//
// Its input is budgets, the pods that they select, and the pods' controllers. Its output is the budgets'
// status, and the Events NoPods, UnmanagedPods, NotDeleted and CalculateExpectedPodCountFailed. expected.go
// computes the number of expected pods. stale.go removes the condition DisruptionTarget from pods that were not
// deleted after all. https://kubernetes.io/docs/tasks/run-application/configure-pdb/
package disruption

import (
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	policylisters "k8s.io/client-go/listers/policy/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// deletionTimeout bounds the time between an eviction and the pod's deletionTimestamp. After it the eviction
// counts as failed, and is allowed again.
const deletionTimeout = 2 * time.Minute

type budgets struct {
	*controller.Controller
	client   func() kubernetes.Interface
	lister   policylisters.PodDisruptionBudgetLister
	pods     corelisters.PodLister
	scales   *scales
	recorder record.EventRecorder
	clock    clock.PassiveClock
}

// New returns the controller. Its keys are budgets and, with the prefix podKey, pods.
func New(env *controller.Env) (*controller.Controller, error) {
	pdbs, pods := env.Informers.Policy().V1().PodDisruptionBudgets(), env.Informers.Core().V1().Pods()
	b := &budgets{
		client: env.Client, lister: pdbs.Lister(), pods: pods.Lister(), scales: newScales(env),
		recorder: env.Recorder("controllermanager"), clock: env.Clock,
	}
	b.Controller = controller.New(env, "disruption", b.reconcile)
	controller.Watch(b.Controller, pdbs.Informer(), controller.Handler[*policyv1.PodDisruptionBudget]{
		Add:    func(pdb *policyv1.PodDisruptionBudget) { b.EnqueueObject(pdb) },
		Update: func(_, pdb *policyv1.PodDisruptionBudget) { b.EnqueueObject(pdb) },
	})
	controller.Watch(b.Controller, pods.Informer(), controller.Handler[*corev1.Pod]{
		Add: func(pod *corev1.Pod) {
			b.enqueueCovering(pod)
			b.watchTarget(pod)
		},
		Update: func(old, pod *corev1.Pod) {
			b.watchTarget(pod)
			if !equality.Semantic.DeepEqual(old.Labels, pod.Labels) {
				b.enqueueCovering(old)
			}
			b.enqueueCovering(pod)
		},
		Delete: b.enqueueCovering,
	})
	b.scales.watch(b.Controller, b.enqueueNamespace)
	return b.Controller, nil
}

func (b *budgets) enqueueCovering(pod *corev1.Pod) {
	b.enqueueWhere(pod.Namespace, func(pdb *policyv1.PodDisruptionBudget) bool {
		selector, err := metav1.LabelSelectorAsSelector(pdb.Spec.Selector)
		return err == nil && selector.Matches(labels.Set(pod.Labels))
	})
}

// enqueueNamespace enqueues all budgets of a namespace. It is called when the scale of a controller there has
// changed: percentages depend on it.
func (b *budgets) enqueueNamespace(namespace string) {
	b.enqueueWhere(namespace, func(*policyv1.PodDisruptionBudget) bool { return true })
}

func (b *budgets) enqueueWhere(namespace string, match func(*policyv1.PodDisruptionBudget) bool) {
	all, err := b.lister.PodDisruptionBudgets(namespace).List(labels.Everything())
	if err != nil {
		return // a lister never fails
	}
	for _, pdb := range all {
		if match(pdb) {
			b.EnqueueObject(pdb)
		}
	}
}

func (b *budgets) reconcile(ctx context.Context, key string) error {
	if strings.HasPrefix(key, podKey) {
		return b.reconcilePod(ctx, key)
	}
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return nil // not a key of this controller
	}
	pdb, err := b.lister.PodDisruptionBudgets(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	err = b.syncBudget(ctx, key, pdb)
	if err != nil && !apierrors.IsConflict(err) && ctx.Err() == nil {
		// Without a valid count no eviction may be allowed.
		return controller.FirstError(b.failSafe(ctx, pdb, err), err)
	}
	return err
}

func (b *budgets) syncBudget(ctx context.Context, key string, pdb *policyv1.PodDisruptionBudget) error {
	selector, err := metav1.LabelSelectorAsSelector(pdb.Spec.Selector)
	if err != nil {
		return err
	}
	pods, err := b.pods.Pods(pdb.Namespace).List(selector)
	if err != nil {
		return err
	}
	if len(pods) == 0 {
		b.recorder.Eventf(pdb, corev1.EventTypeNormal, "NoPods", "No matching pods found")
	}
	expected, desired, err := b.expected(ctx, pdb, pods)
	if err != nil {
		b.recorder.Eventf(pdb, corev1.EventTypeWarning, "CalculateExpectedPodCountFailed",
			"Failed to calculate the number of expected pods: %v", err)
		return err
	}
	now := b.clock.Now()
	evicted, recheck := b.evicted(pdb, pods, now)
	if !recheck.IsZero() {
		b.EnqueueAt(key, recheck)
	}
	status := pdb.Status.DeepCopy()
	status.ObservedGeneration = pdb.Generation
	status.CurrentHealthy = healthy(pods, evicted)
	status.DesiredHealthy = desired
	status.ExpectedPods = expected
	status.DisruptedPods = evicted
	status.DisruptionsAllowed = max(status.CurrentHealthy-desired, 0)
	if expected <= 0 {
		status.DisruptionsAllowed = 0
	}
	condition := metav1.Condition{Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionTrue,
		Reason: policyv1.SufficientPodsReason, ObservedGeneration: pdb.Generation,
		LastTransitionTime: metav1.NewTime(now)}
	if status.DisruptionsAllowed == 0 {
		condition.Status, condition.Reason = metav1.ConditionFalse, policyv1.InsufficientPodsReason
	}
	return b.update(ctx, pdb, status, condition)
}

// failSafe sets disruptionsAllowed to 0 while the budget cannot be computed.
func (b *budgets) failSafe(ctx context.Context, pdb *policyv1.PodDisruptionBudget, cause error) error {
	status := pdb.Status.DeepCopy()
	status.DisruptionsAllowed = 0
	return b.update(ctx, pdb, status, metav1.Condition{Type: policyv1.DisruptionAllowedCondition,
		Status: metav1.ConditionFalse,
		Reason: policyv1.SyncFailedReason, Message: cause.Error(), ObservedGeneration: status.ObservedGeneration,
		LastTransitionTime: metav1.NewTime(b.clock.Now())})
}

// update writes the status if it differs from the cached one. The write carries the resourceVersion that was
// read, so that it cannot undo an eviction in between.
func (b *budgets) update(ctx context.Context, pdb *policyv1.PodDisruptionBudget,
	status *policyv1.PodDisruptionBudgetStatus, condition metav1.Condition) error {
	meta.SetStatusCondition(&status.Conditions, condition)
	if equality.Semantic.DeepEqual(&pdb.Status, status) {
		return nil
	}
	updated := pdb.DeepCopy()
	updated.Status = *status
	_, err := b.client().PolicyV1().PodDisruptionBudgets(pdb.Namespace).UpdateStatus(ctx, updated,
		metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// evicted returns the pods with an allowed eviction that do not show their deletion yet, and when the first of
// these evictions counts as failed; zero if there is none.
func (b *budgets) evicted(pdb *policyv1.PodDisruptionBudget, pods []*corev1.Pod,
	now time.Time) (still map[string]metav1.Time, recheck time.Time) {
	for _, pod := range pods {
		since, ok := pdb.Status.DisruptedPods[pod.Name]
		if !ok || pod.DeletionTimestamp != nil {
			continue
		}
		end := since.Add(deletionTimeout)
		if !end.After(now) {
			b.recorder.Eventf(pod, corev1.EventTypeWarning, "NotDeleted",
				"Pod was expected by PDB %s/%s to be deleted but it wasn't", pdb.Namespace, pdb.Name)
			continue
		}
		if still == nil {
			still = map[string]metav1.Time{}
		}
		still[pod.Name] = since
		if recheck.IsZero() || end.Before(recheck) {
			recheck = end
		}
	}
	return still, recheck
}

// healthy counts the ready pods that are neither evicted nor being deleted.
func healthy(pods []*corev1.Pod, evicted map[string]metav1.Time) int32 {
	n := int32(0)
	for _, pod := range pods {
		if _, goes := evicted[pod.Name]; !goes && pod.DeletionTimestamp == nil && controller.PodReady(pod) {
			n++
		}
	}
	return n
}
