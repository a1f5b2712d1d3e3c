package plugins

import (
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

const spreadScoreKey = "PodTopologySpread/score"

// spreadScores holds the counts of PreScore.
type spreadScores struct {
	constraints []spreadConstraint
	weights     []float64 // more domains, more weight for each pod
	counts      []map[string]int
	ignored     map[string]bool // nodes without the labels
}

// PreScore implements framework.PreScorePlugin.
func (p *PodTopologySpread) PreScore(state *framework.CycleState, pod *framework.PodInfo, passed []*framework.NodeInfo,
	nodes framework.Snapshot) *framework.Status {
	constraints := p.constraints(pod.Pod, corev1.ScheduleAnyway)
	if len(constraints) == 0 {
		return skip
	}
	p.counted.lend(pod.Pod.Namespace, constraints, len(nodes.Nodes()))
	s := &spreadScores{
		constraints: constraints, weights: make([]float64, len(constraints)), counts: make([]map[string]int,
			len(constraints)),
		ignored: map[string]bool{},
	}
	needAll := len(pod.Pod.Spec.TopologySpreadConstraints) > 0 || !p.system
	for i := range s.counts {
		s.counts[i] = map[string]int{}
	}
	for _, node := range passed {
		if needAll && !hasLabels(node.Node, constraints) {
			s.ignored[node.Node.Name] = true
			continue
		}
		for i := range constraints {
			if domain, ok := node.Node.Labels[constraints[i].key]; ok && constraints[i].key != corev1.LabelHostname {
				s.counts[i][domain] = 0
			}
		}
	}
	for i := range constraints {
		domains := len(s.counts[i])
		if constraints[i].key == corev1.LabelHostname { // each node is a domain, which Score counts by itself
			domains = len(passed) - len(s.ignored)
		}
		s.weights[i] = math.Log(float64(domains + 2))
	}
	s.count(pod.Pod, nodes, needAll)
	state.Write(spreadScoreKey, s)
	return nil
}

// count counts the pods in the domains of the nodes that passed, on all their nodes.
func (s *spreadScores) count(pod *corev1.Pod, nodes framework.Snapshot, needAll bool) {
	if !slices.ContainsFunc(s.counts, func(domains map[string]int) bool { return len(domains) > 0 }) {
		return // the only domains are hosts
	}
	required := nodeaffinity.GetRequiredNodeAffinity(pod)
	for _, node := range nodes.Nodes() {
		if needAll && !hasLabels(node.Node, s.constraints) {
			continue
		}
		for i := range s.constraints {
			c := &s.constraints[i]
			domain := node.Node.Labels[c.key]
			if _, counted := s.counts[i][domain]; counted && c.includes(pod, required, node.Node) {
				s.counts[i][domain] += c.on(pod.Namespace, node)
			}
		}
	}
}

// Score implements framework.ScorePlugin: the number of matching pods in the node's domains. Fewer are
// better.
func (*PodTopologySpread) Score(state *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) int64 {
	s, ok := state.Read(spreadScoreKey).(*spreadScores)
	if !ok || s.ignored[node.Node.Name] {
		return 0
	}
	var score float64
	for i := range s.constraints {
		c := &s.constraints[i]
		domain, ok := node.Node.Labels[c.key]
		if !ok {
			continue
		}
		n := s.counts[i][domain]
		if c.key == corev1.LabelHostname {
			n = c.on(pod.Pod.Namespace, node)
		}
		// The larger the allowed skew, the less differences matter.
		score += float64(n)*s.weights[i] + float64(c.maxSkew-1)
	}
	return int64(math.Round(score))
}

// NormalizeScore implements framework.ScoreNormalizer.
func (*PodTopologySpread) NormalizeScore(state *framework.CycleState, _ *framework.PodInfo, nodes []*framework.NodeInfo,
	scores []int64) {
	s, ok := state.Read(spreadScoreKey).(*spreadScores)
	if !ok {
		return
	}
	least, largest := int64(math.MaxInt64), int64(0)
	for i, score := range scores {
		if !s.ignored[nodes[i].Node.Name] {
			least, largest = min(least, score), max(largest, score)
		}
	}
	for i, score := range scores {
		switch {
		case s.ignored[nodes[i].Node.Name]:
			scores[i] = 0
		case largest == 0:
			scores[i] = framework.MaxNodeScore
		default:
			scores[i] = framework.MaxNodeScore * (largest + least - score) / largest
		}
	}
}
