package plugins

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	corelisters "k8s.io/client-go/listers/core/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// InterPodAffinity enforces spec.affinity.podAffinity and podAntiAffinity, of the pod and of existing pods: a pod's
// required anti-affinity also keeps others out of its domain. Scores are in interpodaffinity_score.go.
type InterPodAffinity struct {
	namespaces            corelisters.NamespaceLister
	hardWeight            int32
	ignorePreferredOthers bool
}

const podAffinityKey = "InterPodAffinity/filter"

var (
	podAffinityMismatch = framework.NewStatus("InterPodAffinity", framework.UnschedulableAndUnresolvable,
		"node(s) didn't match pod affinity rules")
	podAntiAffinityMismatch = framework.NewStatus("InterPodAffinity", framework.Unschedulable,
		"node(s) didn't match pod anti-affinity rules")
	existingAntiAffinityHurt = framework.NewStatus("InterPodAffinity", framework.Unschedulable,
		"node(s) didn't satisfy existing pods anti-affinity rules")
)

func newInterPodAffinity(args framework.Args, h framework.Handle) (framework.Plugin, error) {
	var a configv1.InterPodAffinityArgs
	if err := args.Decode(&a); err != nil {
		return nil, err
	}
	p := &InterPodAffinity{namespaces: h.Informers().Core().V1().Namespaces().Lister(), hardWeight: 1,
		ignorePreferredOthers: a.IgnorePreferredTermsOfExistingPods}
	if a.HardPodAffinityWeight != nil {
		p.hardWeight = *a.HardPodAffinityWeight
	}
	if p.hardWeight < 0 || p.hardWeight > 100 {
		return nil, field.Invalid(args.Path.Child("hardPodAffinityWeight"), p.hardWeight, "not in valid range [0-100]")
	}
	return p, nil
}

// Name implements framework.Plugin.
func (*InterPodAffinity) Name() string { return "InterPodAffinity" }

// topologyPair is a label that the nodes of one topology domain share.
type topologyPair struct{ key, value string }

// pairCounts is the number of matches in each domain.
type pairCounts map[topologyPair]int

func (c pairCounts) add(node *corev1.Node, key string, sign int) {
	value, ok := node.Labels[key]
	if !ok {
		return
	}
	pair := topologyPair{key, value}
	if c[pair] += sign; c[pair] == 0 {
		delete(c, pair)
	}
}

func (c pairCounts) clone() pairCounts {
	out := make(pairCounts, len(c))
	for k, v := range c {
		out[k] = v
	}
	return out
}

// podAffinityState holds the counts of PreFilter.
type podAffinityState struct {
	affinityTerms, antiTerms []framework.AffinityTerm // of the pod, namespaces resolved
	namespace                labels.Set               // labels of the pod's namespace
	// existing counts the pods with an anti-affinity that excludes this one; affinity and anti count the pods that
	// match the pod's own terms.
	existing, affinity, anti pairCounts
}

// Clone implements framework.Cloner.
func (s *podAffinityState) Clone() any {
	c := *s
	c.existing, c.affinity, c.anti = s.existing.clone(), s.affinity.clone(), s.anti.clone()
	return &c
}

// count adds a pod on a node to the counts, or removes it from them.
func (s *podAffinityState) count(pod, other *framework.PodInfo, node *corev1.Node, sign int) {
	s.countExisting(pod, other, node, sign)
	s.countOwn(other, node, sign)
}

func (s *podAffinityState) countExisting(pod, other *framework.PodInfo, node *corev1.Node, sign int) {
	for i := range other.RequiredAntiAffinity {
		if t := &other.RequiredAntiAffinity[i]; t.Matches(pod.Pod, s.namespace) {
			s.existing.add(node, t.TopologyKey, sign)
		}
	}
}

func (s *podAffinityState) countOwn(other *framework.PodInfo, node *corev1.Node, sign int) {
	// Affinity needs a pod that matches all terms; anti-affinity excludes pods that match any.
	if len(s.affinityTerms) > 0 && matchesAll(s.affinityTerms, other.Pod, nil) {
		for i := range s.affinityTerms {
			s.affinity.add(node, s.affinityTerms[i].TopologyKey, sign)
		}
	}
	for i := range s.antiTerms {
		if t := &s.antiTerms[i]; t.Matches(other.Pod, nil) {
			s.anti.add(node, t.TopologyKey, sign)
		}
	}
}

// matchesAll reports whether all terms select a pod in a namespace with these labels. If the terms' namespaces are
// resolved, the labels may be nil.
func matchesAll(terms []framework.AffinityTerm, pod *corev1.Pod, namespace labels.Set) bool {
	for i := range terms {
		if !terms[i].Matches(pod, namespace) {
			return false
		}
	}
	return true
}

// PreFilter implements framework.PreFilterPlugin.
func (p *InterPodAffinity) PreFilter(state *framework.CycleState, pod *framework.PodInfo, nodes framework.Snapshot) (
	*framework.PreFilterResult, *framework.Status) {
	others := nodes.NodesWithRequiredAntiAffinity()
	if len(others) == 0 && len(pod.RequiredAffinity) == 0 && len(pod.RequiredAntiAffinity) == 0 {
		return nil, skip
	}
	s := &podAffinityState{
		affinityTerms: p.resolved(pod.RequiredAffinity), antiTerms: p.resolved(pod.RequiredAntiAffinity),
		namespace: p.namespaceLabels(pod.Pod.Namespace),
		existing:  pairCounts{}, affinity: pairCounts{}, anti: pairCounts{},
	}
	for _, node := range others {
		for _, other := range node.PodsWithRequiredAntiAffinity {
			s.countExisting(pod, other, node.Node, 1)
		}
	}
	if len(s.affinityTerms)+len(s.antiTerms) > 0 {
		for _, node := range nodes.Nodes() {
			for _, other := range node.Pods {
				s.countOwn(other, node.Node, 1)
			}
		}
	} else if len(s.existing) == 0 {
		return nil, skip
	}
	state.Write(podAffinityKey, s)
	return nil, nil
}

// resolved replaces the terms' namespace selectors with the names of the selected namespaces.
func (p *InterPodAffinity) resolved(terms []framework.AffinityTerm) []framework.AffinityTerm {
	out := make([]framework.AffinityTerm, len(terms))
	for i, t := range terms {
		out[i] = p.resolve(t)
	}
	return out
}

func (p *InterPodAffinity) resolve(t framework.AffinityTerm) framework.AffinityTerm {
	if t.NamespaceSelector.String() == "" { // none, or all
		return t
	}
	selected, _ := p.namespaces.List(t.NamespaceSelector) // a lister has no errors
	t.Namespaces = sets.New(t.Namespaces.UnsortedList()...)
	for _, namespace := range selected {
		t.Namespaces.Insert(namespace.Name)
	}
	t.NamespaceSelector = labels.Nothing()
	return t
}

func (p *InterPodAffinity) namespaceLabels(name string) labels.Set {
	if namespace, err := p.namespaces.Get(name); err == nil {
		return namespace.Labels
	}
	return nil
}

// Filter implements framework.FilterPlugin.
func (p *InterPodAffinity) Filter(state *framework.CycleState, pod *framework.PodInfo,
	node *framework.NodeInfo) *framework.Status {
	s, ok := state.Read(podAffinityKey).(*podAffinityState)
	switch {
	case !ok:
		return nil
	case !s.affinityHolds(pod, node.Node):
		return podAffinityMismatch
	case !s.antiAffinityHolds(node.Node):
		return podAntiAffinityMismatch
	case !s.othersHold(node.Node):
		return existingAntiAffinityHurt
	}
	return nil
}

// affinityHolds reports whether each term has a match in the node's domain. It also holds if there is no match
// anywhere and the pod matches itself: otherwise the first pod of a group with affinity to itself would wait
// forever.
func (s *podAffinityState) affinityHolds(pod *framework.PodInfo, node *corev1.Node) bool {
	matched := true
	for i := range s.affinityTerms {
		key := s.affinityTerms[i].TopologyKey
		value, ok := node.Labels[key]
		if !ok {
			return false
		}
		matched = matched && s.affinity[topologyPair{key, value}] > 0
	}
	return matched || len(s.affinity) == 0 && matchesAll(s.affinityTerms, pod.Pod, nil)
}

func (s *podAffinityState) antiAffinityHolds(node *corev1.Node) bool {
	for i := range s.antiTerms {
		key := s.antiTerms[i].TopologyKey
		if value, ok := node.Labels[key]; ok && s.anti[topologyPair{key, value}] > 0 {
			return false
		}
	}
	return true
}

func (s *podAffinityState) othersHold(node *corev1.Node) bool {
	if len(s.existing) == 0 {
		return true
	}
	for key, value := range node.Labels {
		if s.existing[topologyPair{key, value}] > 0 {
			return false
		}
	}
	return true
}

// AddPod implements framework.PreFilterExtensions.
func (p *InterPodAffinity) AddPod(state *framework.CycleState, pod, added *framework.PodInfo,
	node *framework.NodeInfo) *framework.Status {
	if s, ok := state.Read(podAffinityKey).(*podAffinityState); ok {
		s.count(pod, added, node.Node, 1)
	}
	return nil
}

// RemovePod implements framework.PreFilterExtensions.
func (p *InterPodAffinity) RemovePod(state *framework.CycleState, pod, removed *framework.PodInfo,
	node *framework.NodeInfo) *framework.Status {
	if s, ok := state.Read(podAffinityKey).(*podAffinityState); ok {
		s.count(pod, removed, node.Node, -1)
	}
	return nil
}

// EventsToRegister implements framework.EnqueueExtensions.
func (p *InterPodAffinity) EventsToRegister() []framework.EventHint {
	return []framework.EventHint{
		{Event: event(framework.AssignedPod, framework.Add|framework.UpdatePodLabel|framework.Delete),
			Helps: p.podHelps},
		{Event: event(framework.Node, framework.Add|framework.UpdateNodeLabel),
			Helps: framework.NodeHint(nodeHasTopology)},
		{Event: event(framework.Namespace, framework.Add|framework.Update)},
		{Event: event(framework.UnscheduledPod, framework.UpdatePodLabel)},
	}
}

// podHelps reports whether a pod that matches the affinity was added, or a pod that excluded this one was deleted
// or changed.
func (p *InterPodAffinity) podHelps(pod *framework.PodInfo, change *framework.Change) bool {
	if now, ok := change.New.(*framework.PodInfo); ok && p.attracts(pod, now) {
		return true
	}
	old, ok := change.Old.(*framework.PodInfo)
	if !ok {
		return false
	}
	// A pod that matched the affinity in another domain may have kept this one from being the first of
	// its group.
	return p.repels(pod, old) || p.repels(old, pod) || change.New == nil && p.attracts(pod, old)
}

// attracts reports whether the pod has affinity and all its terms select the other one.
func (p *InterPodAffinity) attracts(pod, other *framework.PodInfo) bool {
	terms := pod.RequiredAffinity
	return len(terms) > 0 && matchesAll(terms, other.Pod, p.namespaceLabels(other.Pod.Namespace))
}

// repels reports whether a term of the pod's anti-affinity selects the other one.
func (p *InterPodAffinity) repels(pod, other *framework.PodInfo) bool {
	if len(pod.RequiredAntiAffinity) == 0 {
		return false
	}
	namespace := p.namespaceLabels(other.Pod.Namespace)
	for i := range pod.RequiredAntiAffinity {
		if pod.RequiredAntiAffinity[i].Matches(other.Pod, namespace) {
			return true
		}
	}
	return false
}

func nodeHasTopology(pod *framework.PodInfo, node *framework.NodeInfo) bool {
	for i := range pod.RequiredAffinity {
		if _, ok := node.Node.Labels[pod.RequiredAffinity[i].TopologyKey]; !ok {
			return false
		}
	}
	return true
}
