package scheduler

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// profile is a set of plugins sorted by the steps they take part in. The scheduling loop
// owns it and its buffers.
type profile struct {
	name       string
	preEnqueue []framework.PreEnqueuePlugin
	preFilter  []step[framework.PreFilterPlugin]
	filter     []step[framework.FilterPlugin]
	postFilter []framework.PostFilterPlugin
	preScore   []step[framework.PreScorePlugin]
	score      []step[framework.ScorePlugin]
	reserve    []framework.ReservePlugin
	permit     []framework.PermitPlugin
	bind       []framework.BindPlugin
	hints      map[string][]framework.EventHint

	start    int // where the walk over the nodes begins, so that sampling reaches all of them
	feasible []*framework.NodeInfo
	refused  []refusal
	active   []step[framework.FilterPlugin]
	raw      []int64
	total    []int64
}

// step is a plugin at one of its steps, with its place in the profile to remember Skip by.
type step[P framework.Plugin] struct {
	index  int
	weight int64
	plugin P
}

type refusal struct {
	node   string
	status *framework.Status
}

func newProfile(p Profile) (*profile, error) {
	if len(p.Plugins) > 64 {
		return nil, fmt.Errorf("profile %s has %d plugins, 64 is the most", p.SchedulerName, len(p.Plugins))
	}
	out := &profile{name: p.SchedulerName, hints: map[string][]framework.EventHint{}}
	for i, plugin := range p.Plugins {
		name := plugin.Name()
		if _, twice := out.hints[name]; twice {
			return nil, fmt.Errorf("profile %s has plugin %s twice", p.SchedulerName, name)
		}
		out.hints[name] = allEvents
		if e, ok := plugin.(framework.EventsPlugin); ok {
			out.hints[name] = e.EventsToRegister()
		}
		weight := int64(1)
		if w, ok := plugin.(framework.Weighted); ok {
			weight = w.Weight()
		}
		appendIf(&out.preEnqueue, plugin)
		appendStep(&out.preFilter, i, weight, plugin)
		appendStep(&out.filter, i, weight, plugin)
		appendIf(&out.postFilter, plugin)
		appendStep(&out.preScore, i, weight, plugin)
		appendStep(&out.score, i, weight, plugin)
		appendIf(&out.reserve, plugin)
		appendIf(&out.permit, plugin)
		appendIf(&out.bind, plugin)
	}
	return out, nil
}

// allEvents wakes the pods of a plugin that does not say what it waits for.
var allEvents = func() []framework.EventHint {
	hints := make([]framework.EventHint, framework.ClusterEvents)
	for i := range hints {
		hints[i].Event = framework.ClusterEvent(i)
	}
	return hints
}()

func appendIf[P framework.Plugin](to *[]P, plugin framework.Plugin) {
	if p, ok := plugin.(P); ok {
		*to = append(*to, p)
	}
}

func appendStep[P framework.Plugin](to *[]step[P], index int, weight int64, plugin framework.Plugin) {
	if p, ok := plugin.(P); ok {
		*to = append(*to, step[P]{index, weight, p})
	}
}

// unplaceable is the error of a cycle that found no node.
type unplaceable struct{ diagnosis *framework.Diagnosis }

func (u *unplaceable) Error() string { return u.diagnosis.Message() }

// place finds the node for a pod: PreFilter, Filter, Score. It returns *unplaceable where there is none, after the
// PostFilter plugins had their say.
func (p *profile) place(ctx context.Context, state *framework.CycleState, pod *framework.PodInfo, nodes framework.Snapshot) (string, error) {
	diagnosis := &framework.Diagnosis{Total: len(nodes.Nodes()), Plugins: map[string]struct{}{}}
	candidates, err := p.runPreFilter(state, pod, nodes, diagnosis)
	if err != nil {
		return "", err
	}
	if err := p.runFilter(state, pod, candidates); err != nil {
		return "", err
	}
	if len(p.feasible) == 0 {
		diagnosis.NodeStatuses = make(map[string]*framework.Status, len(p.refused))
		for _, r := range p.refused {
			diagnosis.NodeStatuses[r.node] = r.status
			diagnosis.Plugins[r.status.Plugin()] = struct{}{}
		}
		if err := p.runPostFilter(ctx, state, pod, nodes, diagnosis); err != nil {
			return "", err
		}
		return "", &unplaceable{diagnosis}
	}
	if len(p.feasible) == 1 {
		return p.feasible[0].Node.Name, nil
	}
	if err := p.runScore(state, pod); err != nil {
		return "", err
	}
	return p.feasible[best(p.total)].Node.Name, nil
}

// runPreFilter returns the nodes to filter and leaves in p.active the filters that have something to say.
func (p *profile) runPreFilter(state *framework.CycleState, pod *framework.PodInfo, nodes framework.Snapshot, diagnosis *framework.Diagnosis) ([]*framework.NodeInfo, error) {
	var skipped uint64
	var names map[string]struct{}
	var narrowedBy []string
	for _, s := range p.preFilter {
		result, status := s.plugin.PreFilter(state, pod, nodes)
		switch {
		case status.Skipped():
			skipped |= 1 << s.index
		case status.Rejected():
			diagnosis.PreFilterMessage = strings.Join(status.Reasons(), ", ")
			diagnosis.Plugins[s.plugin.Name()] = struct{}{}
			return nil, &unplaceable{diagnosis}
		case !status.OK():
			return nil, status.Err()
		}
		if result != nil && result.NodeNames != nil {
			names = intersect(names, result.NodeNames)
			narrowedBy = append(narrowedBy, s.plugin.Name())
		}
	}
	p.active = p.active[:0]
	for _, s := range p.filter {
		if skipped&(1<<s.index) == 0 {
			p.active = append(p.active, s)
		}
	}
	if names == nil {
		return nodes.Nodes(), nil
	}
	candidates := make([]*framework.NodeInfo, 0, len(names))
	for name := range names {
		if node := nodes.Node(name); node != nil {
			candidates = append(candidates, node)
		}
	}
	slices.Sort(narrowedBy)
	diagnosis.Absent = framework.NewStatus("", framework.UnschedulableAndUnresolvable,
		fmt.Sprintf("node(s) didn't satisfy plugin(s) %v", narrowedBy))
	for _, name := range narrowedBy {
		diagnosis.Plugins[name] = struct{}{}
	}
	return candidates, nil
}

func intersect(a, b map[string]struct{}) map[string]struct{} {
	if a == nil {
		return b
	}
	both := make(map[string]struct{})
	for name := range a {
		if _, ok := b[name]; ok {
			both[name] = struct{}{}
		}
	}
	return both
}

// runFilter leaves in p.feasible nodes that can take the pod and in p.refused those that were asked and
// cannot. In a large cluster it stops when there are enough to choose from; the next pod goes on where this
// one stopped.
func (p *profile) runFilter(state *framework.CycleState, pod *framework.PodInfo, candidates []*framework.NodeInfo) error {
	p.feasible, p.refused = p.feasible[:0], p.refused[:0]
	n := len(candidates)
	enough := nodesToFind(n)
	asked := 0
	for ; asked < n && len(p.feasible) < enough; asked++ {
		node := candidates[(p.start+asked)%n]
		status := p.filterNode(state, pod, node)
		switch {
		case status.OK():
			p.feasible = append(p.feasible, node)
		case status.Rejected():
			p.refused = append(p.refused, refusal{node.Node.Name, status})
		default:
			return status.Err()
		}
	}
	if n > 0 {
		p.start = (p.start + asked) % n
	}
	return nil
}

func (p *profile) filterNode(state *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	for _, s := range p.active {
		if status := s.plugin.Filter(state, pod, node); !status.OK() {
			return status
		}
	}
	return nil
}

// nodesToFind is after how many feasible nodes the search ends: all of a hundred, half of a few
// hundred, falling to one in twenty of many thousands. These are Kubernetes' figures.
func nodesToFind(nodes int) int {
	const least = 100
	if nodes <= least {
		return nodes
	}
	percent := max(5, 50-nodes/125)
	return max(least, nodes*percent/100)
}

func (p *profile) runPostFilter(ctx context.Context, state *framework.CycleState, pod *framework.PodInfo, nodes framework.Snapshot, diagnosis *framework.Diagnosis) error {
	var messages []string
	for _, plugin := range p.postFilter {
		nominated, status := plugin.PostFilter(ctx, state, pod, nodes, diagnosis)
		if status.Code() == framework.Error {
			return status.Err()
		}
		messages = append(messages, status.Reasons()...)
		if nominated != "" {
			break
		}
	}
	diagnosis.PostFilterMessage = strings.Join(messages, ", ")
	return nil
}

// runScore leaves in p.total the weighted sum of the scores of each of p.feasible.
func (p *profile) runScore(state *framework.CycleState, pod *framework.PodInfo) error {
	var skipped uint64
	for _, s := range p.preScore {
		switch status := s.plugin.PreScore(state, pod, p.feasible); {
		case status.Skipped():
			skipped |= 1 << s.index
		case !status.OK():
			return status.Err()
		}
	}
	p.total = append(p.total[:0], make([]int64, len(p.feasible))...)
	for _, s := range p.score {
		if skipped&(1<<s.index) != 0 {
			continue
		}
		p.raw = p.raw[:0]
		for _, node := range p.feasible {
			p.raw = append(p.raw, s.plugin.Score(state, pod, node))
		}
		if n, ok := any(s.plugin).(framework.ScoreNormalizer); ok {
			n.NormalizeScore(state, pod, p.raw)
		}
		for i, score := range p.raw {
			p.total[i] += s.weight * score
		}
	}
	return nil
}

// best is the index of a highest score, each of several equal ones with the same chance.
func best(scores []int64) int {
	at, ties := 0, 1
	for i := 1; i < len(scores); i++ {
		switch {
		case scores[i] > scores[at]:
			at, ties = i, 1
		case scores[i] == scores[at]:
			if ties++; rand.IntN(ties) == 0 {
				at = i
			}
		}
	}
	return at
}

// runReserve claims what goes with the node; on failure everything is given back.
func (p *profile) runReserve(state *framework.CycleState, pod *framework.PodInfo, node string) *framework.Status {
	for _, plugin := range p.reserve {
		if status := plugin.Reserve(state, pod, node); !status.OK() {
			p.runUnreserve(state, pod, node)
			return status
		}
	}
	return nil
}

// runUnreserve gives back in the reverse order.
func (p *profile) runUnreserve(state *framework.CycleState, pod *framework.PodInfo, node string) {
	for _, plugin := range slices.Backward(p.reserve) {
		plugin.Unreserve(state, pod, node)
	}
}

// names are the names of all plugins.
func (p *profile) names() map[string]struct{} {
	names := make(map[string]struct{}, len(p.hints))
	for name := range p.hints {
		names[name] = struct{}{}
	}
	return names
}
