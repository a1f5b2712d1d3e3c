package plugins

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// NodeResourcesFit rejects nodes that have less free than the pod requests, and scores nodes by the share of their
// resources that would be free or used (resourcestrategy.go).
type NodeResourcesFit struct {
	ignored       map[corev1.ResourceName]bool
	ignoredGroups []string // with the trailing slash
	strategy      *resourceStrategy
}

// The most frequent statuses are made once. If the pod would not fit even on an empty node, preemption
// cannot help.
var (
	tooManyPods        = framework.NewStatus("NodeResourcesFit", framework.Unschedulable, "Too many pods")
	insufficientCPU    = framework.NewStatus("NodeResourcesFit", framework.Unschedulable, "Insufficient cpu")
	insufficientMemory = framework.NewStatus("NodeResourcesFit", framework.Unschedulable, "Insufficient memory")
	neverEnoughCPU     = framework.NewStatus("NodeResourcesFit", framework.UnschedulableAndUnresolvable,
		"Insufficient cpu")
	neverEnoughMemory = framework.NewStatus("NodeResourcesFit", framework.UnschedulableAndUnresolvable,
		"Insufficient memory")
)

func newNodeResourcesFit(args framework.Args, _ framework.Handle) (framework.Plugin, error) {
	var a configv1.NodeResourcesFitArgs
	if err := args.Decode(&a); err != nil {
		return nil, err
	}
	p := &NodeResourcesFit{ignored: map[corev1.ResourceName]bool{}}
	for _, name := range a.IgnoredResources {
		p.ignored[corev1.ResourceName(name)] = true
	}
	for _, group := range a.IgnoredResourceGroups {
		p.ignoredGroups = append(p.ignoredGroups, group+"/")
	}
	var err error
	p.strategy, err = newResourceStrategy(a.ScoringStrategy, args.Path.Child("scoringStrategy"))
	return p, err
}

// Name implements framework.Plugin.
func (*NodeResourcesFit) Name() string { return "NodeResourcesFit" }

// Filter implements framework.FilterPlugin.
func (p *NodeResourcesFit) Filter(_ *framework.CycleState, pod *framework.PodInfo,
	node *framework.NodeInfo) *framework.Status {
	return p.fits(&pod.Requests, &node.Requested, &node.Allocatable)
}

// fits compares want with the free part of have. A resource that the pod does not request is not checked, even if
// the node is overcommitted; only the pod slot always is.
func (p *NodeResourcesFit) fits(want, used, have *framework.Resource) *framework.Status {
	lacks := func(want, used, have int64) bool { return want > 0 && want > have-used }
	pods := lacks(want.Pods, used.Pods, have.Pods)
	cpu := lacks(want.MilliCPU, used.MilliCPU, have.MilliCPU)
	memory := lacks(want.Memory, used.Memory, have.Memory)
	storage := lacks(want.EphemeralStorage, used.EphemeralStorage, have.EphemeralStorage)
	var scalars []corev1.ResourceName
	for name, amount := range want.Scalar {
		if lacks(amount, used.Scalar[name], have.Scalar[name]) && !p.ignores(name) {
			scalars = append(scalars, name)
		}
	}
	switch {
	case !pods && !cpu && !memory && !storage && len(scalars) == 0:
		return nil
	case pods && !cpu && !memory && !storage && len(scalars) == 0:
		return tooManyPods
	case cpu && !pods && !memory && !storage && len(scalars) == 0:
		if want.MilliCPU > have.MilliCPU {
			return neverEnoughCPU
		}
		return insufficientCPU
	case memory && !pods && !cpu && !storage && len(scalars) == 0:
		if want.Memory > have.Memory {
			return neverEnoughMemory
		}
		return insufficientMemory
	}
	var reasons []string
	code := framework.Unschedulable
	lacking := func(name corev1.ResourceName) {
		reasons = append(reasons, "Insufficient "+string(name))
		if want.Of(name) > have.Of(name) {
			code = framework.UnschedulableAndUnresolvable
		}
	}
	if pods {
		reasons = append(reasons, "Too many pods")
	}
	if cpu {
		lacking(corev1.ResourceCPU)
	}
	if memory {
		lacking(corev1.ResourceMemory)
	}
	if storage {
		lacking(corev1.ResourceEphemeralStorage)
	}
	slices.Sort(scalars)
	for _, name := range scalars {
		lacking(name)
	}
	return framework.NewStatus(p.Name(), code, reasons...)
}

// ignores reports whether the configuration excludes an extended resource.
func (p *NodeResourcesFit) ignores(name corev1.ResourceName) bool {
	if p.ignored[name] {
		return true
	}
	return slices.ContainsFunc(p.ignoredGroups, func(group string) bool {
		return strings.HasPrefix(string(name), group)
	})
}

// Score implements framework.ScorePlugin.
func (p *NodeResourcesFit) Score(_ *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) int64 {
	return p.strategy.score(pod, node)
}

// EventsToRegister implements framework.EnqueueExtensions. A node helps if it would hold the pod when
// empty; the end or the resize of a pod helps if it frees a resource that this one requests.
func (p *NodeResourcesFit) EventsToRegister() []framework.EventHint {
	return []framework.EventHint{
		{Event: event(framework.Node, framework.Add|framework.UpdateNodeAllocatable),
			Helps: framework.NodeHint(func(pod *framework.PodInfo, node *framework.NodeInfo) bool {
				return p.fits(&pod.Requests, &framework.Resource{}, &node.Allocatable).OK()
			})},
		{Event: event(framework.AssignedPod, framework.Delete)}, // it frees at least a pod slot
		{Event: event(framework.AssignedPod, framework.UpdatePodScaleDown),
			Helps: func(pod *framework.PodInfo, change *framework.Change) bool {
				old, was := change.Old.(*framework.PodInfo)
				now, is := change.New.(*framework.PodInfo)
				if !was || !is {
					return true
				}
				freed := old.Requests.Clone()
				freed.Add(now.Requests, -1)
				helps := func(name corev1.ResourceName) bool { return pod.Requests.Of(name) > 0 && freed.Of(name) > 0 }
				return helps(corev1.ResourceCPU) || helps(corev1.ResourceMemory) ||
					helps(corev1.ResourceEphemeralStorage) ||
					slices.ContainsFunc(slices.Collect(maps.Keys(pod.Requests.Scalar)), helps)
			}},
		{Event: event(framework.UnscheduledPod, framework.UpdatePodScaleDown)},
	}
}
