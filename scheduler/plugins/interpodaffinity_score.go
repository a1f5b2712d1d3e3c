package plugins

import (
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

const podAffinityScoreKey = "InterPodAffinity/score"

// topologyScores holds the scores of each value of each topology key.
type topologyScores map[string]map[string]int64

func (s topologyScores) add(t *framework.AffinityTerm, weight int64, node *corev1.Node) {
	value, ok := node.Labels[t.TopologyKey]
	if !ok {
		return
	}
	if s[t.TopologyKey] == nil {
		s[t.TopologyKey] = map[string]int64{}
	}
	s[t.TopologyKey][value] += weight
}

// PreScore implements framework.PreScorePlugin. It counts the preferences of the pod and of existing pods. A
// required affinity of an existing pod counts as a preference as well (hardPodAffinityWeight).
func (p *InterPodAffinity) PreScore(state *framework.CycleState, pod *framework.PodInfo, _ []*framework.NodeInfo,
	nodes framework.Snapshot) *framework.Status {
	scores := p.scores(pod, nodes)
	if len(scores) == 0 {
		return skip
	}
	state.Write(podAffinityScoreKey, scores)
	return nil
}

func (p *InterPodAffinity) scores(pod *framework.PodInfo, nodes framework.Snapshot) topologyScores {
	own := len(pod.PreferredAffinity)+len(pod.PreferredAntiAffinity) > 0
	if !own && p.ignorePreferredOthers {
		return nil
	}
	among := nodes.NodesWithAffinity()
	if own {
		among = nodes.Nodes()
	}
	if len(among) == 0 {
		return nil
	}
	affinity, anti := p.resolvedWeighted(pod.PreferredAffinity), p.resolvedWeighted(pod.PreferredAntiAffinity)
	namespace := p.namespaceLabels(pod.Pod.Namespace)
	s := topologyScores{}
	for _, node := range among {
		others := node.PodsWithAffinity
		if own {
			others = node.Pods
		}
		for _, other := range others {
			s.addAll(affinity, 1, other.Pod, nil, node.Node)
			s.addAll(anti, -1, other.Pod, nil, node.Node)
			if p.hardWeight > 0 {
				for i := range other.RequiredAffinity {
					if t := &other.RequiredAffinity[i]; t.Matches(pod.Pod, namespace) {
						s.add(t, int64(p.hardWeight), node.Node)
					}
				}
			}
			s.addAll(other.PreferredAffinity, 1, pod.Pod, namespace, node.Node)
			s.addAll(other.PreferredAntiAffinity, -1, pod.Pod, namespace, node.Node)
		}
	}
	return s
}

func (s topologyScores) addAll(terms []framework.WeightedAffinityTerm, sign int64, pod *corev1.Pod,
	namespace labels.Set, node *corev1.Node) {
	for i := range terms {
		if t := &terms[i]; t.Matches(pod, namespace) {
			s.add(&t.AffinityTerm, sign*int64(t.Weight), node)
		}
	}
}

func (p *InterPodAffinity) resolvedWeighted(terms []framework.WeightedAffinityTerm) []framework.WeightedAffinityTerm {
	out := make([]framework.WeightedAffinityTerm, len(terms))
	for i, t := range terms {
		out[i] = framework.WeightedAffinityTerm{AffinityTerm: p.resolve(t.AffinityTerm), Weight: t.Weight}
	}
	return out
}

// Score implements framework.ScorePlugin.
func (*InterPodAffinity) Score(state *framework.CycleState, _ *framework.PodInfo, node *framework.NodeInfo) int64 {
	scores, _ := state.Read(podAffinityScoreKey).(topologyScores)
	var sum int64
	for key, values := range scores {
		if value, ok := node.Node.Labels[key]; ok {
			sum += values[value]
		}
	}
	return sum
}

// NormalizeScore implements framework.ScoreNormalizer. Scores may be negative, so the lowest becomes zero and the
// highest MaxNodeScore.
func (*InterPodAffinity) NormalizeScore(_ *framework.CycleState, _ *framework.PodInfo, _ []*framework.NodeInfo,
	scores []int64) {
	least, largest := int64(math.MaxInt64), int64(math.MinInt64)
	for _, s := range scores {
		least, largest = min(least, s), max(largest, s)
	}
	for i, s := range scores {
		scores[i] = 0
		if largest > least {
			scores[i] = int64(float64(framework.MaxNodeScore) * (float64(s-least) / float64(largest-least)))
		}
	}
}
