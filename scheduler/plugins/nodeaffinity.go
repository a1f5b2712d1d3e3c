package plugins

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// NodeAffinity keeps to spec.nodeSelector and the required terms of spec.affinity.nodeAffinity, and
// scores by the preferred ones.
type NodeAffinity struct{}

const (
	requiredKey  = "NodeAffinity/required"
	preferredKey = "NodeAffinity/preferred"
)

var nodeAffinityMismatch = framework.NewStatus("NodeAffinity", framework.UnschedulableAndUnresolvable,
	"node(s) didn't match Pod's node affinity/selector")

// Name implements framework.Plugin.
func (NodeAffinity) Name() string { return "NodeAffinity" }

// PreFilter implements framework.PreFilterPlugin. Terms that name their nodes, as the pods of a
// DaemonSet have them, narrow the search to those.
func (NodeAffinity) PreFilter(state *framework.CycleState, pod *framework.PodInfo, _ framework.Snapshot) (*framework.PreFilterResult, *framework.Status) {
	required := requiredTerms(pod.Pod)
	if required == nil && len(pod.Pod.Spec.NodeSelector) == 0 {
		return nil, skip
	}
	state.Write(requiredKey, nodeaffinity.GetRequiredNodeAffinity(pod.Pod))
	if required == nil {
		return nil, nil
	}
	names := make(map[string]struct{})
	for _, term := range required.NodeSelectorTerms {
		named := false
		for _, field := range term.MatchFields {
			if field.Key == metav1.ObjectNameField && field.Operator == corev1.NodeSelectorOpIn {
				named = true
				for _, name := range field.Values {
					names[name] = struct{}{}
				}
			}
		}
		if !named { // the terms are alternatives: this one may match any node
			return nil, nil
		}
	}
	return &framework.PreFilterResult{NodeNames: names}, nil
}

// Filter implements framework.FilterPlugin.
func (p NodeAffinity) Filter(state *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	required, ok := state.Read(requiredKey).(nodeaffinity.RequiredNodeAffinity)
	if !ok {
		required = nodeaffinity.GetRequiredNodeAffinity(pod.Pod)
	}
	// A malformed selector matches nothing; validation keeps such out, so there is nothing to add.
	if matches, _ := required.Match(node.Node); !matches {
		return nodeAffinityMismatch
	}
	return nil
}

// PreScore implements framework.PreScorePlugin.
func (p NodeAffinity) PreScore(state *framework.CycleState, pod *framework.PodInfo, _ []*framework.NodeInfo) *framework.Status {
	affinity := pod.Pod.Spec.Affinity
	if affinity == nil || affinity.NodeAffinity == nil || len(affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution) == 0 {
		return skip
	}
	preferred, err := nodeaffinity.NewPreferredSchedulingTerms(affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	if err != nil {
		return framework.AsError(p.Name(), err)
	}
	state.Write(preferredKey, preferred)
	return nil
}

// Score implements framework.ScorePlugin.
func (NodeAffinity) Score(state *framework.CycleState, _ *framework.PodInfo, node *framework.NodeInfo) int64 {
	if preferred, ok := state.Read(preferredKey).(*nodeaffinity.PreferredSchedulingTerms); ok {
		return preferred.Score(node.Node)
	}
	return 0
}

// NormalizeScore implements framework.ScoreNormalizer.
func (NodeAffinity) NormalizeScore(_ *framework.CycleState, _ *framework.PodInfo, scores []int64) {
	normalize(scores, false)
}

// Weight implements framework.Weighted.
func (NodeAffinity) Weight() int64 { return 2 }

// EventsToRegister implements framework.EventsPlugin.
func (p NodeAffinity) EventsToRegister() []framework.EventHint {
	helps := func(pod *framework.PodInfo, node *framework.NodeInfo) bool {
		return p.Filter(&framework.CycleState{}, pod, node).OK()
	}
	return []framework.EventHint{
		{Event: framework.NodeAdded, Helps: helps},
		{Event: framework.NodeUpdated, Helps: helps},
		{Event: framework.PodUpdated}, // a gated pod may narrow its selector
	}
}

func requiredTerms(pod *corev1.Pod) *corev1.NodeSelector {
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		return a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	return nil
}
