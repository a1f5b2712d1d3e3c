package plugins

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

type budget = policyv1.PodDisruptionBudget

// candidate is a node that can take the pod once the victims are gone.
type candidate struct {
	node       string
	victims    []*framework.PodInfo // the most important first
	violations int                  // of disruption budgets
}

// victimsOn finds the fewest and least important pods of a node that must be deleted. It removes all pods of lower
// priority and, if the pod fits then, puts back as many as possible: first the pods with a disruption budget that
// their deletion would violate, and among them the most important first. It changes state and node.
func (p *DefaultPreemption) victimsOn(state *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo,
	budgets []*budget) (candidate, *framework.Status) {
	var lower []*framework.PodInfo
	for _, other := range slices.Clone(node.Pods) {
		if other.Priority() < pod.Priority() {
			lower = append(lower, other)
			node.RemovePod(other.Pod.UID)
			if status := p.h.RemovePod(state, pod, other, node); !status.OK() {
				return candidate{}, status
			}
		}
	}
	if len(lower) == 0 {
		return candidate{}, noVictims
	}
	if status := p.h.FilterWithNominated(state, pod, node); !status.OK() {
		return candidate{}, status
	}
	slices.SortFunc(lower, moreImportant)
	c := candidate{node: node.Node.Name}
	violating, others := splitByBudgets(lower, budgets)
	for i, group := range [][]*framework.PodInfo{violating, others} {
		for _, other := range group {
			fits, status := p.fitsWith(state, pod, other, node)
			switch {
			case status.Code() == framework.Error:
				return candidate{}, status
			case !fits:
				c.victims = append(c.victims, other)
				if i == 0 {
					c.violations++
				}
			}
		}
	}
	slices.SortFunc(c.victims, moreImportant)
	return c, nil
}

// fitsWith puts another pod back, and removes it again if the pod does not fit beside it.
func (p *DefaultPreemption) fitsWith(state *framework.CycleState, pod, other *framework.PodInfo,
	node *framework.NodeInfo) (bool, *framework.Status) {
	node.AddPod(other)
	if status := p.h.AddPod(state, pod, other, node); !status.OK() {
		return false, status
	}
	status := p.h.FilterWithNominated(state, pod, node)
	if status.OK() {
		return true, nil
	}
	node.RemovePod(other.Pod.UID)
	p.h.RemovePod(state, pod, other, node)
	return false, status
}

// moreImportant orders pods by priority, and among equals the one that has run longer first.
func moreImportant(a, b *framework.PodInfo) int {
	return cmp.Or(cmp.Compare(b.Priority(), a.Priority()), startOf(a).Compare(startOf(b).Time))
}

// startOf returns when a pod was started. A pod that was not started yet is the youngest.
func startOf(p *framework.PodInfo) metav1.Time {
	if p.Pod.Status.StartTime != nil {
		return *p.Pod.Status.StartTime
	}
	return metav1.Unix(math.MaxInt32, 0)
}

// splitByBudgets separates the pods that cannot be deleted, after the pods before them, without violating a
// disruption budget.
func splitByBudgets(pods []*framework.PodInfo, budgets []*budget) (violating, others []*framework.PodInfo) {
	allowed := make([]int32, len(budgets))
	selectors := make([]labels.Selector, len(budgets))
	for i, b := range budgets {
		allowed[i] = b.Status.DisruptionsAllowed
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil || selector.Empty() {
			selector = labels.Nothing()
		}
		selectors[i] = selector
	}
	for _, p := range pods {
		violates := false
		for i, b := range budgets {
			if b.Namespace != p.Pod.Namespace || !selectors[i].Matches(labels.Set(p.Pod.Labels)) {
				continue
			}
			if _, counted := b.Status.DisruptedPods[p.Pod.Name]; counted {
				continue // the API server has counted its disruption already
			}
			allowed[i]--
			violates = violates || allowed[i] < 0
		}
		if violates {
			violating = append(violating, p)
		} else {
			others = append(others, p)
		}
	}
	return violating, others
}

// choose returns the candidate that does the least harm: the fewest violated budgets; then the lowest
// priority of the most important victim; the smallest sum of priorities; the fewest victims; and the
// shortest run of the most important victims.
func choose(candidates []candidate) candidate {
	return slices.MinFunc(candidates, func(a, b candidate) int {
		if len(a.victims) == 0 || len(b.victims) == 0 { // no victims: a pod has ended meanwhile
			return cmp.Compare(len(a.victims), len(b.victims))
		}
		return cmp.Or(
			cmp.Compare(a.violations, b.violations),
			cmp.Compare(a.victims[0].Priority(), b.victims[0].Priority()),
			cmp.Compare(sumOfPriorities(a.victims), sumOfPriorities(b.victims)),
			cmp.Compare(len(a.victims), len(b.victims)),
			earliestStart(b.victims).Compare(earliestStart(a.victims).Time),
		)
	})
}

// sumOfPriorities shifts all priorities above zero: otherwise more victims of negative priority would look better.
func sumOfPriorities(pods []*framework.PodInfo) (sum int64) {
	for _, p := range pods {
		sum += int64(p.Priority()) + math.MaxInt32 + 1
	}
	return sum
}

// earliestStart returns the earliest start among the pods of the highest priority.
func earliestStart(pods []*framework.PodInfo) metav1.Time {
	earliest := startOf(pods[0])
	for _, p := range pods {
		if start := startOf(p); p.Priority() == pods[0].Priority() && start.Before(&earliest) {
			earliest = start
		}
	}
	return earliest
}

// patchStatus applies a merge patch to a pod's status.
func (p *DefaultPreemption) patchStatus(ctx context.Context, pod *corev1.Pod, status map[string]any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": status})
	if err == nil {
		_, err = p.h.Client().CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch,
			metav1.PatchOptions{}, "status")
	}
	if err != nil {
		return fmt.Errorf("patch status: %w", err)
	}
	return nil
}
