package plugins

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"
	policylisters "k8s.io/client-go/listers/policy/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// DefaultPreemption makes room for a pod by deleting pods of lower priority. It looks for nodes where removing some
// would let the pod in, chooses the one where that does the least harm (preemptioncandidates.go), nominates the pod
// for it, and deletes the victims gracefully. The pod takes the room in a later attempt, when they have ended;
// until then its nomination keeps pods of lower priority away.
type DefaultPreemption struct {
	h                framework.Handle
	budgets          policylisters.PodDisruptionBudgetLister
	percent, atLeast int32 // how many of the possible nodes are examined
}

func newDefaultPreemption(args framework.Args, h framework.Handle) (framework.Plugin, error) {
	var a configv1.DefaultPreemptionArgs
	if err := args.Decode(&a); err != nil {
		return nil, err
	}
	p := &DefaultPreemption{
		h: h, budgets: h.Informers().Policy().V1().PodDisruptionBudgets().Lister(),
		percent: ptr.Deref(a.MinCandidateNodesPercentage, 10), atLeast: ptr.Deref(a.MinCandidateNodesAbsolute, 100),
	}
	var errs field.ErrorList
	if p.percent < 0 || p.percent > 100 {
		errs = append(errs, field.Invalid(args.Path.Child("minCandidateNodesPercentage"), p.percent,
			"not in valid range [0, 100]"))
	}
	if p.atLeast < 0 {
		errs = append(errs, field.Invalid(args.Path.Child("minCandidateNodesAbsolute"), p.atLeast,
			"not in valid range [0, inf)"))
	}
	if p.percent == 0 && p.atLeast == 0 {
		errs = append(errs, field.Invalid(args.Path.Child("minCandidateNodesPercentage"), p.percent,
			"cannot be zero at the same time as minCandidateNodesAbsolute"))
	}
	return p, errs.ToAggregate()
}

// Name implements framework.Plugin.
func (*DefaultPreemption) Name() string { return "DefaultPreemption" }

// PostFilter implements framework.PostFilterPlugin.
func (p *DefaultPreemption) PostFilter(ctx context.Context, state *framework.CycleState, pod *framework.PodInfo,
	nodes framework.Snapshot, diagnosis *framework.Diagnosis) (*framework.PostFilterResult, *framework.Status) {
	refuse := func(message string) *framework.Status {
		return framework.NewStatus(p.Name(), framework.Unschedulable, "preemption: "+message)
	}
	if why := ineligible(pod, nodes, diagnosis); why != "" {
		return nil, refuse(why)
	}
	budgets, err := p.budgets.List(labels.Everything())
	if err != nil {
		return nil, framework.AsError(p.Name(), fmt.Errorf("list disruption budgets: %w", err))
	}
	candidates, failed := p.candidates(state, pod, nodes, diagnosis, budgets)
	if len(candidates) == 0 {
		return &framework.PostFilterResult{}, refuse(failed.Message())
	}
	best := choose(candidates)
	return &framework.PostFilterResult{
		NominatedNodeName: best.node,
		Victims:           len(best.victims),
		Then:              func(ctx context.Context) error { return p.preempt(ctx, pod, best) },
	}, nil
}

// ineligible returns the reason why a pod must not preempt others, or "".
func ineligible(pod *framework.PodInfo, nodes framework.Snapshot, diagnosis *framework.Diagnosis) string {
	if policy := pod.Pod.Spec.PreemptionPolicy; policy != nil && *policy == corev1.PreemptNever {
		return "not eligible due to preemptionPolicy=Never."
	}
	name := pod.Pod.Status.NominatedNodeName
	node := nodes.Node(name)
	if node == nil || diagnosis.Of(name).Code() == framework.UnschedulableAndUnresolvable {
		return "" // it has no nomination, or no longer fits on the node
	}
	for _, other := range node.Pods {
		if other.Pod.DeletionTimestamp != nil && other.Priority() < pod.Priority() && preempted(other.Pod) {
			return "not eligible due to a terminating pod on the nominated node."
		}
	}
	return ""
}

// preempted reports whether a pod terminates because the scheduler preempted it.
func preempted(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue &&
			c.Reason == corev1.PodReasonPreemptionByScheduler
	})
}

var (
	noVictims = framework.NewStatus("DefaultPreemption", framework.UnschedulableAndUnresolvable,
		"No preemption victims found for incoming pod")
	notHelpful = framework.NewStatus("DefaultPreemption", framework.UnschedulableAndUnresolvable,
		"Preemption is not helpful for scheduling")
)

// candidates tries nodes where preemption might help until there are enough to choose from. It starts
// at a random node, so that it is not always the same nodes that lose pods. failed holds the reasons of
// the other nodes.
func (p *DefaultPreemption) candidates(state *framework.CycleState, pod *framework.PodInfo, nodes framework.Snapshot,
	diagnosis *framework.Diagnosis, budgets []*budget) ([]candidate, *framework.Diagnosis) {
	var hopeful []*framework.NodeInfo
	for _, node := range nodes.Nodes() {
		if diagnosis.Of(node.Node.Name).Code() == framework.Unschedulable {
			hopeful = append(hopeful, node)
		}
	}
	failed := &framework.Diagnosis{Total: diagnosis.Total, NodeStatuses: map[string]*framework.Status{},
		Absent: notHelpful}
	if len(hopeful) == 0 {
		return nil, failed
	}
	enough := max(int(p.atLeast), len(hopeful)*int(p.percent)/100)
	offset := rand.IntN(len(hopeful))
	var mu sync.Mutex
	var gentle, violating []candidate
	p.h.Parallel(len(hopeful), func(i int) {
		mu.Lock()
		done := len(gentle) > 0 && len(gentle)+len(violating) >= enough
		mu.Unlock()
		if done {
			return
		}
		node := hopeful[(offset+i)%len(hopeful)]
		c, status := p.victimsOn(state.Clone(), pod, node.Clone(), budgets)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case !status.OK():
			failed.NodeStatuses[node.Node.Name] = status
		case c.violations == 0:
			gentle = append(gentle, c)
		default:
			violating = append(violating, c)
		}
	})
	return append(gentle, violating...), failed
}

// preempt deletes the victims and removes nominations that the pod makes invalid. It returns when the API server
// has accepted the deletions; the victims keep their grace periods.
func (p *DefaultPreemption) preempt(ctx context.Context, pod *framework.PodInfo, c candidate) error {
	var errs []error
	for _, victim := range c.victims {
		if reject, waiting := p.h.WaitingPod(victim.Pod); waiting {
			reject("preempted")
		} else if err := p.evict(ctx, pod.Pod, victim.Pod); err != nil {
			errs = append(errs, err)
			continue
		}
		p.h.Event(victim.Pod, corev1.EventTypeNormal, "Preempted", "Preempting",
			fmt.Sprintf("Preempted by pod %s on node %s", pod.Pod.UID, c.node))
	}
	for _, other := range p.h.NominatedPods(c.node) {
		// Pods of lower priority may not fit any more: they look for a node again.
		if other.Priority() < pod.Priority() && other.Pod.Status.NominatedNodeName != "" {
			if err := p.patchStatus(ctx, other.Pod, map[string]any{"nominatedNodeName": nil}); err != nil {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// evict records the reason in a victim's conditions, and deletes it. A victim that does not exist any more is not
// an error.
func (p *DefaultPreemption) evict(ctx context.Context, preemptor, victim *corev1.Pod) error {
	if victim.DeletionTimestamp != nil {
		return nil
	}
	err := p.patchStatus(ctx, victim, map[string]any{"conditions": []corev1.PodCondition{{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonPreemptionByScheduler,
		Message: fmt.Sprintf("%s: preempting to accommodate a higher priority pod",
			preemptor.Spec.SchedulerName),
		ObservedGeneration: victim.Generation, LastTransitionTime: metav1.NewTime(p.h.Clock().Now()),
	}}})
	if err == nil {
		err = p.h.Client().CoreV1().Pods(victim.Namespace).Delete(ctx, victim.Name,
			metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &victim.UID}})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("preempt pod %s/%s: %w", victim.Namespace, victim.Name, err)
	}
	return nil
}

// EventsToRegister implements framework.EnqueueExtensions: this plugin does not reject pods.
func (*DefaultPreemption) EventsToRegister() []framework.EventHint { return nil }
