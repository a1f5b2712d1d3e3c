package plugins

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// NodeAffinity enforces spec.nodeSelector and the required terms of spec.affinity.nodeAffinity, and
// scores by the preferred ones. The profile can add an affinity of its own for all its pods
// (addedAffinity).
type NodeAffinity struct {
	addedRequired  *nodeaffinity.NodeSelector
	addedPreferred *nodeaffinity.PreferredSchedulingTerms
}

const (
	requiredKey  = "NodeAffinity/required"
	preferredKey = "NodeAffinity/preferred"
)

var (
	nodeAffinityMismatch = framework.NewStatus("NodeAffinity", framework.UnschedulableAndUnresolvable,
		"node(s) didn't match Pod's node affinity/selector")
	addedAffinityMismatch = framework.NewStatus("NodeAffinity", framework.UnschedulableAndUnresolvable,
		"node(s) didn't match scheduler-enforced node affinity")
	affinityConflict = framework.NewStatus("NodeAffinity", framework.UnschedulableAndUnresolvable,
		"pod affinity terms conflict")
)

func newNodeAffinity(args framework.Args, _ framework.Handle) (framework.Plugin, error) {
	var a configv1.NodeAffinityArgs
	if err := args.Decode(&a); err != nil {
		return nil, err
	}
	p := &NodeAffinity{}
	if a.AddedAffinity == nil {
		return p, nil
	}
	path, err := args.Path.Child("addedAffinity"), error(nil)
	if required := a.AddedAffinity.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
		if p.addedRequired, err = nodeaffinity.NewNodeSelector(required,
			field.WithPath(path.Child("requiredDuringSchedulingIgnoredDuringExecution"))); err != nil {
			return nil, err
		}
	}
	if preferred := a.AddedAffinity.PreferredDuringSchedulingIgnoredDuringExecution; len(preferred) > 0 {
		if p.addedPreferred, err = nodeaffinity.NewPreferredSchedulingTerms(preferred,
			field.WithPath(path.Child("preferredDuringSchedulingIgnoredDuringExecution"))); err != nil {
			return nil, err
		}
	}
	if p.addedRequired == nil && p.addedPreferred == nil {
		return nil, fmt.Errorf("%s: at least one of required and preferred affinity must be set", path)
	}
	return p, nil
}

// Name implements framework.Plugin.
func (*NodeAffinity) Name() string { return "NodeAffinity" }

// PreFilter implements framework.PreFilterPlugin. Terms that name their nodes, as in the pods of a DaemonSet,
// narrow the search to these nodes.
func (p *NodeAffinity) PreFilter(state *framework.CycleState, pod *framework.PodInfo, _ framework.Snapshot) (
	*framework.PreFilterResult, *framework.Status) {
	required := requiredTerms(pod.Pod)
	if required == nil && len(pod.Pod.Spec.NodeSelector) == 0 && p.addedRequired == nil {
		return nil, skip
	}
	state.Write(requiredKey, nodeaffinity.GetRequiredNodeAffinity(pod.Pod))
	if required == nil {
		return nil, nil
	}
	var names map[string]struct{}
	for i := range required.NodeSelectorTerms {
		named := namesOf(&required.NodeSelectorTerms[i])
		if named == nil { // the terms are alternatives: this one may match any node
			return nil, nil
		}
		if names == nil {
			names = map[string]struct{}{}
		}
		for name := range named {
			names[name] = struct{}{}
		}
	}
	if names != nil && len(names) == 0 {
		return nil, affinityConflict
	}
	return &framework.PreFilterResult{NodeNames: names}, nil
}

// namesOf returns the nodes that a term names; nil if it names none.
func namesOf(term *corev1.NodeSelectorTerm) map[string]struct{} {
	var names map[string]struct{}
	for _, f := range term.MatchFields {
		if f.Key != metav1.ObjectNameField || f.Operator != corev1.NodeSelectorOpIn {
			continue
		}
		these := make(map[string]struct{}, len(f.Values))
		for _, name := range f.Values {
			if _, ok := names[name]; ok || names == nil {
				these[name] = struct{}{}
			}
		}
		names = these
	}
	return names
}

// Filter implements framework.FilterPlugin.
func (p *NodeAffinity) Filter(state *framework.CycleState, pod *framework.PodInfo,
	node *framework.NodeInfo) *framework.Status {
	if p.addedRequired != nil && !p.addedRequired.Match(node.Node) {
		return addedAffinityMismatch
	}
	required, ok := state.Read(requiredKey).(nodeaffinity.RequiredNodeAffinity)
	if !ok {
		required = nodeaffinity.GetRequiredNodeAffinity(pod.Pod)
	}
	// A malformed selector matches no nodes. Validation rejects it, so the error needs no report.
	if matches, _ := required.Match(node.Node); !matches {
		return nodeAffinityMismatch
	}
	return nil
}

// PreScore implements framework.PreScorePlugin.
func (p *NodeAffinity) PreScore(state *framework.CycleState, pod *framework.PodInfo, _ []*framework.NodeInfo,
	_ framework.Snapshot) *framework.Status {
	affinity := pod.Pod.Spec.Affinity
	if affinity == nil || affinity.NodeAffinity == nil ||
		len(affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution) == 0 {
		if p.addedPreferred == nil {
			return skip
		}
		return nil
	}
	preferred, err := nodeaffinity.NewPreferredSchedulingTerms(
		affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	if err != nil {
		return framework.AsError(p.Name(), err)
	}
	state.Write(preferredKey, preferred)
	return nil
}

// Score implements framework.ScorePlugin.
func (p *NodeAffinity) Score(state *framework.CycleState, _ *framework.PodInfo, node *framework.NodeInfo) int64 {
	var score int64
	if p.addedPreferred != nil {
		score += p.addedPreferred.Score(node.Node)
	}
	if preferred, ok := state.Read(preferredKey).(*nodeaffinity.PreferredSchedulingTerms); ok {
		score += preferred.Score(node.Node)
	}
	return score
}

// NormalizeScore implements framework.ScoreNormalizer.
func (*NodeAffinity) NormalizeScore(_ *framework.CycleState, _ *framework.PodInfo, _ []*framework.NodeInfo,
	scores []int64) {
	normalize(scores, false)
}

// EventsToRegister implements framework.EnqueueExtensions.
func (p *NodeAffinity) EventsToRegister() []framework.EventHint {
	return []framework.EventHint{
		{Event: event(framework.Node, framework.Add|framework.UpdateNodeLabel),
			Helps: framework.NodeHint(func(pod *framework.PodInfo, node *framework.NodeInfo) bool {
				return p.Filter(nil, pod, node).OK()
			})},
		{Event: event(framework.UnscheduledPod, framework.Update)}, // a gated pod may narrow its selector
	}
}

func requiredTerms(pod *corev1.Pod) *corev1.NodeSelector {
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		return a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	return nil
}
