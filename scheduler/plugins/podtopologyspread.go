package plugins

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// PodTopologySpread keeps pods that match a selector spread over zones, nodes or other domains
// (spec.topologySpreadConstraints): DoNotSchedule filters here, ScheduleAnyway scores in
// podtopologyspread_score.go. A pod without constraints gets the defaults of the configuration, with the selector
// of its Services and its controller.
type PodTopologySpread struct {
	defaults []corev1.TopologySpreadConstraint
	system   bool // the defaults are the system's, which allow nodes without zones
	owners   *ownerSelectors
	counted  spreadCounts
}

const spreadKey = "PodTopologySpread/filter"

var (
	spreadMismatch = framework.NewStatus("PodTopologySpread", framework.Unschedulable,
		"node(s) didn't match pod topology spread constraints")
	spreadNoLabel = framework.NewStatus("PodTopologySpread", framework.UnschedulableAndUnresolvable,
		"node(s) didn't match pod topology spread constraints (missing required label)")
)

var systemConstraints = []corev1.TopologySpreadConstraint{
	{TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway, MaxSkew: 3},
	{TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.ScheduleAnyway, MaxSkew: 5},
}

func newPodTopologySpread(args framework.Args, h framework.Handle) (framework.Plugin, error) {
	var a configv1.PodTopologySpreadArgs
	if err := args.Decode(&a); err != nil {
		return nil, err
	}
	p := &PodTopologySpread{defaults: a.DefaultConstraints}
	switch a.DefaultingType {
	case "", configv1.SystemDefaulting:
		if len(a.DefaultConstraints) > 0 {
			return nil, field.Invalid(args.Path.Child("defaultingType"), string(configv1.SystemDefaulting),
				"when .defaultConstraints are not empty, must be List")
		}
		p.defaults, p.system = systemConstraints, true
	case configv1.ListDefaulting:
	default:
		return nil, field.NotSupported(args.Path.Child("defaultingType"), a.DefaultingType,
			[]configv1.PodTopologySpreadConstraintsDefaulting{configv1.SystemDefaulting, configv1.ListDefaulting})
	}
	if errs := validateDefaults(p.defaults, args.Path.Child("defaultConstraints")); len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	if len(p.defaults) > 0 {
		p.owners = newOwnerSelectors(h.Informers())
	}
	return p, nil
}

func validateDefaults(constraints []corev1.TopologySpreadConstraint, path *field.Path) (errs field.ErrorList) {
	for i, c := range constraints {
		path := path.Index(i)
		if c.MaxSkew <= 0 {
			errs = append(errs, field.Invalid(path.Child("maxSkew"), c.MaxSkew, "not in valid range (0, inf)"))
		}
		if c.TopologyKey == "" {
			errs = append(errs, field.Required(path.Child("topologyKey"), "can not be empty"))
		}
		if c.WhenUnsatisfiable != corev1.DoNotSchedule && c.WhenUnsatisfiable != corev1.ScheduleAnyway {
			errs = append(errs, field.NotSupported(path.Child("whenUnsatisfiable"), c.WhenUnsatisfiable,
				[]corev1.UnsatisfiableConstraintAction{corev1.DoNotSchedule, corev1.ScheduleAnyway}))
		}
		if c.LabelSelector != nil {
			errs = append(errs, field.Forbidden(path.Child("labelSelector"), "constraint must not define a "+
				"selector, as they deduced for each pod"))
		}
	}
	return errs
}

// Name implements framework.Plugin.
func (*PodTopologySpread) Name() string { return "PodTopologySpread" }

// spreadConstraint is a constraint, ready to be checked.
type spreadConstraint struct {
	key           string
	maxSkew       int
	minDomains    int
	selector      labels.Selector
	self          int // 1 if the pod itself matches
	honorAffinity bool
	honorTaints   bool
	counted       map[*framework.NodeInfo]podCount // see spreadCounts
}

// constraints returns the pod's constraints with an action, or the configuration's.
func (p *PodTopologySpread) constraints(pod *corev1.Pod,
	action corev1.UnsatisfiableConstraintAction) []spreadConstraint {
	list, fallback := pod.Spec.TopologySpreadConstraints, labels.Selector(nil)
	if len(list) == 0 {
		list = p.defaults
	}
	var out []spreadConstraint
	for i := range list {
		c := &list[i]
		if c.WhenUnsatisfiable != action {
			continue
		}
		s := spreadConstraint{
			key: c.TopologyKey, maxSkew: int(c.MaxSkew), minDomains: int(ptr.Deref(c.MinDomains, 1)),
			honorAffinity: ptr.Deref(c.NodeAffinityPolicy,
				corev1.NodeInclusionPolicyHonor) == corev1.NodeInclusionPolicyHonor,
			honorTaints: ptr.Deref(c.NodeTaintsPolicy,
				corev1.NodeInclusionPolicyIgnore) == corev1.NodeInclusionPolicyHonor,
		}
		if len(pod.Spec.TopologySpreadConstraints) == 0 {
			if fallback == nil {
				if fallback = p.owners.of(pod); fallback.Empty() {
					return nil // it has no owner, and therefore no pods to be spread with
				}
			}
			s.selector = fallback
		} else {
			selector, err := metav1.LabelSelectorAsSelector(c.LabelSelector)
			if err != nil {
				selector = labels.Nothing()
			}
			s.selector = framework.WithLabelKeys(selector, pod, c.MatchLabelKeys, nil)
		}
		if s.selector.Matches(labels.Set(pod.Labels)) {
			s.self = 1
		}
		out = append(out, s)
	}
	return out
}

// includes reports whether a node counts for the constraint, by the pod's affinity and tolerations.
func (c *spreadConstraint) includes(pod *corev1.Pod, required nodeaffinity.RequiredNodeAffinity,
	node *corev1.Node) bool {
	if c.honorAffinity {
		if match, _ := required.Match(node); !match {
			return false
		}
	}
	return !c.honorTaints || untolerated(pod, node) == nil
}

// matches counts the pods of a node that the constraint selects, except terminating ones.
func (c *spreadConstraint) matches(namespace string, pods []*framework.PodInfo) int {
	n := 0
	for _, p := range pods {
		if p.Pod.Namespace == namespace && p.Pod.DeletionTimestamp == nil &&
			c.selector.Matches(labels.Set(p.Pod.Labels)) {
			n++
		}
	}
	return n
}

func hasLabels(node *corev1.Node, constraints []spreadConstraint) bool {
	for i := range constraints {
		if _, ok := node.Labels[constraints[i].key]; !ok {
			return false
		}
	}
	return true
}

// spreadState holds the counts of PreFilter: for each constraint, the pods in each of its domains.
type spreadState struct {
	constraints []spreadConstraint
	required    nodeaffinity.RequiredNodeAffinity
	counts      []map[string]int
	least       []int // of each constraint: the fewest pods in a domain
}

// Clone implements framework.Cloner.
func (s *spreadState) Clone() any {
	c := *s
	c.counts, c.least = make([]map[string]int, len(s.counts)), append([]int(nil), s.least...)
	for i, counts := range s.counts {
		c.counts[i] = make(map[string]int, len(counts))
		for domain, n := range counts {
			c.counts[i][domain] = n
		}
	}
	return &c
}

// PreFilter implements framework.PreFilterPlugin.
func (p *PodTopologySpread) PreFilter(state *framework.CycleState, pod *framework.PodInfo, nodes framework.Snapshot) (
	*framework.PreFilterResult, *framework.Status) {
	s := &spreadState{constraints: p.constraints(pod.Pod, corev1.DoNotSchedule)}
	if len(s.constraints) == 0 {
		return nil, skip
	}
	p.counted.lend(pod.Pod.Namespace, s.constraints, len(nodes.Nodes()))
	s.required = nodeaffinity.GetRequiredNodeAffinity(pod.Pod)
	s.counts, s.least = make([]map[string]int, len(s.constraints)), make([]int, len(s.constraints))
	for i := range s.counts {
		s.counts[i] = map[string]int{}
	}
	for _, node := range nodes.Nodes() {
		if !hasLabels(node.Node, s.constraints) {
			continue
		}
		for i := range s.constraints {
			if c := &s.constraints[i]; c.includes(pod.Pod, s.required, node.Node) {
				s.counts[i][node.Node.Labels[c.key]] += c.on(pod.Pod.Namespace, node)
			}
		}
	}
	for i := range s.least {
		s.findLeast(i)
	}
	state.Write(spreadKey, s)
	return nil, nil
}

// findLeast finds the domain with the fewest pods. If there are fewer domains than minDomains, the
// missing ones have none.
func (s *spreadState) findLeast(i int) {
	least := -1
	for _, n := range s.counts[i] {
		if least < 0 || n < least {
			least = n
		}
	}
	if len(s.counts[i]) < s.constraints[i].minDomains {
		least = 0
	}
	s.least[i] = max(0, least)
}

// Filter implements framework.FilterPlugin.
func (p *PodTopologySpread) Filter(state *framework.CycleState, _ *framework.PodInfo,
	node *framework.NodeInfo) *framework.Status {
	s, ok := state.Read(spreadKey).(*spreadState)
	if !ok {
		return nil
	}
	for i := range s.constraints {
		c := &s.constraints[i]
		domain, ok := node.Node.Labels[c.key]
		if !ok {
			return spreadNoLabel
		}
		if s.counts[i][domain]+c.self-s.least[i] > c.maxSkew {
			return spreadMismatch
		}
	}
	return nil
}

// AddPod implements framework.PreFilterExtensions.
func (p *PodTopologySpread) AddPod(state *framework.CycleState, pod, added *framework.PodInfo,
	node *framework.NodeInfo) *framework.Status {
	return p.changed(state, pod, added, node, 1)
}

// RemovePod implements framework.PreFilterExtensions.
func (p *PodTopologySpread) RemovePod(state *framework.CycleState, pod, removed *framework.PodInfo,
	node *framework.NodeInfo) *framework.Status {
	return p.changed(state, pod, removed, node, -1)
}

func (p *PodTopologySpread) changed(state *framework.CycleState, pod, other *framework.PodInfo,
	node *framework.NodeInfo, sign int) *framework.Status {
	s, ok := state.Read(spreadKey).(*spreadState)
	if !ok || !hasLabels(node.Node, s.constraints) {
		return nil
	}
	one := []*framework.PodInfo{other}
	for i := range s.constraints {
		c := &s.constraints[i]
		if c.includes(pod.Pod, s.required, node.Node) && c.matches(pod.Pod.Namespace, one) > 0 {
			s.counts[i][node.Node.Labels[c.key]] += sign
			s.findLeast(i)
		}
	}
	return nil
}

// EventsToRegister implements framework.EnqueueExtensions.
func (p *PodTopologySpread) EventsToRegister() []framework.EventHint {
	return []framework.EventHint{
		{Event: event(framework.AssignedPod, framework.Add|framework.UpdatePodLabel|framework.Delete),
			Helps: p.podHelps},
		// A node that appears, goes, or changes its domain may change the domain with the fewest pods.
		{Event: event(framework.Node,
			framework.Add|framework.Delete|framework.UpdateNodeLabel|framework.UpdateNodeTaint), Helps: p.nodeHelps},
		{Event: event(framework.UnscheduledPod,
			framework.UpdatePodLabel|framework.UpdatePodToleration|framework.UpdateOther)},
	}
}

func (p *PodTopologySpread) podHelps(pod *framework.PodInfo, change *framework.Change) bool {
	for _, o := range []any{change.Old, change.New} {
		other, ok := o.(*framework.PodInfo)
		if !ok || other.Pod.Namespace != pod.Pod.Namespace {
			continue
		}
		for _, c := range p.constraints(pod.Pod, corev1.DoNotSchedule) {
			if c.selector.Matches(labels.Set(other.Pod.Labels)) {
				return true
			}
		}
	}
	return false
}

func (p *PodTopologySpread) nodeHelps(pod *framework.PodInfo, change *framework.Change) bool {
	constraints := p.constraints(pod.Pod, corev1.DoNotSchedule)
	for _, o := range []any{change.Old, change.New} {
		if node, ok := o.(*framework.NodeInfo); ok && hasLabels(node.Node, constraints) {
			return true
		}
	}
	return false
}
