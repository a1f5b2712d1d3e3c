package scheduler

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// search holds the buffers of a search for a node. The next search reuses them.
type search struct {
	start    int                 // the first node of the walk, so that sampling reaches all nodes
	statuses []*framework.Status // the statuses of the filtered nodes; the rest is left from earlier searches
	feasible []*framework.NodeInfo
	active   []step[framework.FilterPlugin]
	raw      []int64
	total    []int64
	attempts uint64 // so far
	measured bool   // whether the plugins of this attempt are measured
}

// unplaceable is the error of a cycle that found no node.
type unplaceable struct {
	diagnosis *framework.Diagnosis
	// post is the result of the PostFilter plugins, or nil.
	post *framework.PostFilterResult
}

func (u *unplaceable) Error() string { return u.diagnosis.Message() }

// place finds the node for a pod: PreFilter, Filter, Score. If there is none, it runs the PostFilter
// plugins and returns *unplaceable.
func (p *profile) place(ctx context.Context, state *framework.CycleState, pod *framework.PodInfo,
	nodes framework.Snapshot) (string, error) {
	diagnosis := &framework.Diagnosis{Total: len(nodes.Nodes()), NodeStatuses: map[string]*framework.Status{},
		Plugins: map[string]struct{}{}}
	if diagnosis.Total == 0 {
		return "", &unplaceable{diagnosis: diagnosis}
	}
	if pod.Constraints > framework.MaxConstraints { // no event can help: the constraints will not become fewer
		diagnosis.PreFilterMessage = fmt.Sprintf("the pod's affinity, spread constraints, tolerations and ports weigh "+
			"%d; at most %d are considered", pod.Constraints, framework.MaxConstraints)
		diagnosis.Plugins["Constraints"] = struct{}{}
		return "", &unplaceable{diagnosis: diagnosis}
	}
	p.measured = p.attempts%measuredEvery == 0
	p.attempts++
	if err := p.find(state, pod, nodes, diagnosis); err != nil {
		return "", err
	}
	if len(p.feasible) == 0 {
		post, err := p.runPostFilter(ctx, state, pod, nodes, diagnosis)
		if err != nil {
			return "", err
		}
		return "", &unplaceable{diagnosis, post}
	}
	if len(p.feasible) == 1 {
		return p.feasible[0].Node.Name, nil
	}
	if err := p.runScore(state, pod, nodes); err != nil {
		return "", err
	}
	return p.feasible[best(p.total)].Node.Name, nil
}

// measuredEvery is the share of attempts whose plugins are measured, as in Kubernetes: 1 of 10.
const measuredEvery = 10

// find collects nodes that can take the pod in p.feasible, and the reasons why others cannot in the diagnosis.
func (p *profile) find(state *framework.CycleState, pod *framework.PodInfo, nodes framework.Snapshot,
	diagnosis *framework.Diagnosis) error {
	p.feasible = p.feasible[:0]
	began := p.metrics.clock.Now()
	names, err := p.runPreFilter(state, pod, nodes, diagnosis)
	code := codeOf(err)
	if diagnosis.PreFilterMessage != "" {
		code = framework.UnschedulableAndUnresolvable
	}
	p.metrics.point("PreFilter", p, began, code)
	if code != framework.Success {
		return err
	}
	began = p.metrics.clock.Now()
	err = p.filterNodes(state, pod, nodes, names, diagnosis)
	if code = codeOf(err); code == framework.Success && len(p.feasible) == 0 {
		code = framework.Unschedulable
	}
	p.metrics.point("Filter", p, began, code)
	return err
}

// filterNodes filters the nodes with these names, or all if names is nil.
func (p *profile) filterNodes(state *framework.CycleState, pod *framework.PodInfo, nodes framework.Snapshot,
	names map[string]struct{}, diagnosis *framework.Diagnosis) error {
	for _, s := range p.active {
		s.evaluated.Inc()
	}
	// If preemption made room on a node, the pod is placed there without a search.
	if nominated := nodes.Node(p.nominator.of(pod.Pod.UID)); nominated != nil {
		if _, out := names[nominated.Node.Name]; names == nil || out {
			if p.filterWithNominated(state, pod, nominated).OK() {
				p.feasible = append(p.feasible, nominated)
				return nil
			}
		}
	}
	candidates := nodes.Nodes()
	if names != nil {
		candidates = make([]*framework.NodeInfo, 0, len(names))
		for name := range names {
			if node := nodes.Node(name); node != nil {
				candidates = append(candidates, node)
			}
		}
	}
	return p.runFilter(state, pod, candidates, diagnosis)
}

// runPreFilter returns the names of the nodes to filter, nil for all, and puts the filters that were not skipped
// into p.active. If it rejects the pod for all nodes, the diagnosis contains the reason.
func (p *profile) runPreFilter(state *framework.CycleState, pod *framework.PodInfo, nodes framework.Snapshot,
	diagnosis *framework.Diagnosis) (map[string]struct{}, error) {
	var skipped uint64
	var names map[string]struct{}
	var narrowedBy []string
	for _, s := range p.preFilter {
		s.evaluated.Inc()
		began := p.began()
		result, status := s.plugin.PreFilter(state, pod, nodes)
		p.ended(s.plugin, "PreFilter", began, status)
		switch {
		case status.Skipped():
			skipped |= 1 << s.index
		case status.Rejected():
			diagnosis.PreFilterMessage = strings.Join(status.Reasons(), ", ")
			diagnosis.Absent = status
			diagnosis.Plugins[s.plugin.Name()] = struct{}{}
			return nil, nil
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
	if names != nil {
		slices.Sort(narrowedBy)
		reason := fmt.Sprintf("node(s) didn't satisfy plugin(s) %v", narrowedBy)
		diagnosis.Absent = framework.NewStatus("", framework.UnschedulableAndUnresolvable, reason)
		for _, name := range narrowedBy {
			diagnosis.Plugins[name] = struct{}{}
		}
		if len(names) == 0 {
			diagnosis.PreFilterMessage = fmt.Sprintf("node(s) didn't satisfy plugin(s) %v simultaneously", narrowedBy)
			if len(narrowedBy) == 1 {
				diagnosis.PreFilterMessage = fmt.Sprintf("node(s) didn't satisfy plugin %v", narrowedBy[0])
			}
		}
	}
	return names, nil
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

const (
	// Filtering this many nodes takes less time than starting goroutines for them.
	filterAlone = 256
	// How many nodes a goroutine filters before it checks whether there are enough.
	filterChunk = 64
)

// runFilter filters the candidates. In a large cluster it stops when there are enough feasible nodes; the search
// for the next pod continues from there. The first few nodes are filtered sequentially: in most clusters these are
// all, or enough. Only beyond them is the work shared between goroutines.
func (p *profile) runFilter(state *framework.CycleState, pod *framework.PodInfo, candidates []*framework.NodeInfo,
	diagnosis *framework.Diagnosis) error {
	n := len(candidates)
	if n == 0 {
		return nil
	}
	enough := nodesToFind(n, p.percentage)
	if len(p.statuses) < n {
		p.statuses = make([]*framework.Status, n)
	}
	node := func(i int) *framework.NodeInfo { return candidates[(p.start+i)%n] }
	filtered := 0
	for ; filtered < min(n, filterAlone) && len(p.feasible) < enough; filtered++ {
		if p.statuses[filtered] = p.filterWithNominated(state, pod, node(filtered)); p.statuses[filtered].OK() {
			p.feasible = append(p.feasible, node(filtered))
		}
	}
	if filtered < n && len(p.feasible) < enough {
		from := filtered
		filtered = p.filterTogether(state, pod, node, from, n, enough-len(p.feasible))
		for i := from; i < filtered && len(p.feasible) < enough; i++ {
			if p.statuses[i].OK() {
				p.feasible = append(p.feasible, node(i))
			}
		}
	}
	for i, status := range p.statuses[:filtered] {
		switch {
		case status.OK():
		case !status.Rejected():
			return status.Err()
		case len(p.feasible) == 0:
			diagnosis.NodeStatuses[node(i).Node.Name] = status
			diagnosis.Plugins[status.Plugin()] = struct{}{}
		}
	}
	p.start = (p.start + filtered) % n
	return nil
}

// filterTogether filters the nodes from an index on, in chunks that several goroutines take in turn, until at least
// enough have passed. It returns the index before which all nodes have been filtered.
func (p *profile) filterTogether(state *framework.CycleState, pod *framework.PodInfo,
	node func(int) *framework.NodeInfo, from, n, enough int) int {
	var next, passed atomic.Int64
	next.Store(int64(from))
	var workers sync.WaitGroup
	for range min(p.parallel, (n-from+filterChunk-1)/filterChunk) {
		workers.Go(func() {
			for passed.Load() < int64(enough) {
				end := int(next.Add(filterChunk))
				if end-filterChunk >= n {
					return
				}
				for i := end - filterChunk; i < min(end, n); i++ {
					if p.statuses[i] = p.filterWithNominated(state, pod, node(i)); p.statuses[i].OK() {
						passed.Add(1)
					}
				}
			}
		})
	}
	workers.Wait()
	return min(n, int(next.Load()))
}

// filterWithNominated filters a node as if the pods of equal or higher priority that are nominated to it were there
// and, if there are any, also without them: they may satisfy an affinity, but may never arrive.
func (p *profile) filterWithNominated(state *framework.CycleState, pod *framework.PodInfo,
	node *framework.NodeInfo) *framework.Status {
	if p.nominator.none() {
		return p.filterNode(state, pod, node)
	}
	var with *framework.NodeInfo
	withState := state
	for _, other := range p.nominator.on(node.Node.Name) {
		if other.Priority() < pod.Priority() || other.Pod.UID == pod.Pod.UID {
			continue
		}
		if with == nil {
			with, withState = node.Clone(), state.Clone()
		}
		with.AddPod(other)
		if status := p.addPod(withState, pod, other, with); !status.OK() {
			return status
		}
	}
	if with != nil {
		if status := p.filterNode(withState, pod, with); !status.OK() {
			return status
		}
	}
	return p.filterNode(state, pod, node)
}

func (p *profile) addPod(state *framework.CycleState, pod, added *framework.PodInfo,
	node *framework.NodeInfo) *framework.Status {
	for _, s := range p.active {
		if e := p.extensions[s.plugin.Name()]; e != nil {
			if status := e.AddPod(state, pod, added, node); !status.OK() {
				return status
			}
		}
	}
	return nil
}

func (p *profile) removePod(state *framework.CycleState, pod, removed *framework.PodInfo,
	node *framework.NodeInfo) *framework.Status {
	for _, s := range p.active {
		if e := p.extensions[s.plugin.Name()]; e != nil {
			if status := e.RemovePod(state, pod, removed, node); !status.OK() {
				return status
			}
		}
	}
	return nil
}

func (p *profile) filterNode(state *framework.CycleState, pod *framework.PodInfo,
	node *framework.NodeInfo) *framework.Status {
	for _, s := range p.active {
		began := p.began()
		status := s.plugin.Filter(state, pod, node)
		p.ended(s.plugin, "Filter", began, status)
		if !status.OK() {
			return status
		}
	}
	return nil
}

// began returns the time, or the zero time in attempts that are not measured.
func (p *profile) began() time.Time {
	if !p.measured {
		return time.Time{}
	}
	return p.metrics.clock.Now()
}

// ended observes the call of a plugin that began at a result of began.
func (p *profile) ended(plugin framework.Plugin, point string, began time.Time, status *framework.Status) {
	if p.measured {
		p.metrics.plugin(plugin.Name(), point, began, status)
	}
}

// nodesToFind returns the number of feasible nodes that end the search. Without a percentage, that is all of a
// hundred, half of a few hundred, falling to one in twenty of many thousands. The figures are Kubernetes'.
func nodesToFind(nodes, percent int) int {
	const least = 100
	if nodes <= least {
		return nodes
	}
	if percent == 0 {
		percent = max(5, 50-nodes/125)
	}
	return max(least, nodes*percent/100)
}

// runPostFilter calls the plugins in turn until one has made room. The messages of the others are joined.
func (p *profile) runPostFilter(ctx context.Context, state *framework.CycleState, pod *framework.PodInfo,
	nodes framework.Snapshot, diagnosis *framework.Diagnosis) (*framework.PostFilterResult, error) {
	if len(p.postFilter) == 0 {
		return nil, nil
	}
	started, code := p.metrics.clock.Now(), framework.Unschedulable
	defer func() { p.metrics.point("PostFilter", p, started, code) }()
	p.metrics.preempts.Inc()
	var messages []string
	var result *framework.PostFilterResult
	for _, plugin := range p.postFilter {
		began := p.began()
		r, status := plugin.PostFilter(ctx, state, pod, nodes, diagnosis)
		p.ended(plugin, "PostFilter", began, status)
		if status.OK() {
			code = framework.Success
			if r != nil && r.NominatedNodeName != "" {
				p.metrics.preempted.Observe(float64(r.Victims))
			}
			return r, nil
		}
		if status.Code() == framework.Error {
			code = framework.Error
			return nil, fmt.Errorf("PostFilter: %w", status.Err())
		}
		messages = append(messages, status.Reasons()...)
		if r != nil && (result == nil || r.NominatedNodeName != "") {
			result = r
		}
	}
	diagnosis.PostFilterMessage = strings.Join(messages, ", ")
	return result, nil
}

// runScore computes in p.total the weighted sum of the scores of each node in p.feasible.
func (p *profile) runScore(state *framework.CycleState, pod *framework.PodInfo, nodes framework.Snapshot) error {
	began := p.metrics.clock.Now()
	skipped, err := p.runPreScore(state, pod, nodes)
	p.metrics.point("PreScore", p, began, codeOf(err))
	if err != nil {
		return err
	}
	began = p.metrics.clock.Now()
	err = p.sumScores(state, pod, skipped)
	p.metrics.point("Score", p, began, codeOf(err))
	return err
}

// runPreScore returns the set of plugins that skip the pod.
func (p *profile) runPreScore(state *framework.CycleState, pod *framework.PodInfo,
	nodes framework.Snapshot) (skipped uint64, err error) {
	for _, s := range p.preScore {
		s.evaluated.Inc()
		began := p.began()
		status := s.plugin.PreScore(state, pod, p.feasible, nodes)
		p.ended(s.plugin, "PreScore", began, status)
		switch {
		case status.Skipped():
			skipped |= 1 << s.index
		case !status.OK():
			return 0, status.Err()
		}
	}
	return skipped, nil
}

func (p *profile) sumScores(state *framework.CycleState, pod *framework.PodInfo, skipped uint64) error {
	p.total = append(p.total[:0], make([]int64, len(p.feasible))...)
	for _, s := range p.score {
		if skipped&(1<<s.index) != 0 {
			continue
		}
		s.evaluated.Inc()
		p.raw = p.raw[:0]
		began := p.began()
		for _, node := range p.feasible {
			p.raw = append(p.raw, s.plugin.Score(state, pod, node))
		}
		p.ended(s.plugin, "Score", began, nil)
		if n, ok := any(s.plugin).(framework.ScoreNormalizer); ok {
			n.NormalizeScore(state, pod, p.feasible, p.raw)
		}
		for i, score := range p.raw {
			if score < 0 || score > framework.MaxNodeScore {
				return fmt.Errorf("plugin %s: score %d is not within 0 and %d", s.plugin.Name(), score,
					framework.MaxNodeScore)
			}
			p.total[i] += s.weight * score
		}
	}
	return nil
}

// best returns the index of a highest score. Equal scores have equal chances.
func best(scores []int64) int {
	index, ties := 0, 1
	for i := 1; i < len(scores); i++ {
		switch {
		case scores[i] > scores[index]:
			index, ties = i, 1
		case scores[i] == scores[index]:
			if ties++; rand.IntN(ties) == 0 {
				index = i
			}
		}
	}
	return index
}

// errAlreadyBound means that the informer was faster than the queue. It is not reported.
var errAlreadyBound = errors.New("already bound")
