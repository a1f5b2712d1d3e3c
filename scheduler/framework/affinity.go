package framework

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/sets"
)

// AffinityTerm is a term of inter-pod (anti-)affinity, ready to be matched.
type AffinityTerm struct {
	Namespaces        sets.Set[string]
	NamespaceSelector labels.Selector
	Selector          labels.Selector
	TopologyKey       string
}

// WeightedAffinityTerm is a preferred term.
type WeightedAffinityTerm struct {
	AffinityTerm
	Weight int32 // 1 to 100
}

// Matches reports whether the term selects a pod in a namespace with these labels.
func (t *AffinityTerm) Matches(pod *corev1.Pod, namespace labels.Set) bool {
	return (t.Namespaces.Has(pod.Namespace) || t.NamespaceSelector.Matches(namespace)) &&
		t.Selector.Matches(labels.Set(pod.Labels))
}

func newTerms(pod *corev1.Pod, terms []corev1.PodAffinityTerm) []AffinityTerm {
	var out []AffinityTerm
	for i := range terms {
		out = append(out, newTerm(pod, &terms[i]))
	}
	return out
}

func newWeightedTerms(pod *corev1.Pod, terms []corev1.WeightedPodAffinityTerm) []WeightedAffinityTerm {
	var out []WeightedAffinityTerm
	for i := range terms {
		out = append(out, WeightedAffinityTerm{newTerm(pod, &terms[i].PodAffinityTerm), terms[i].Weight})
	}
	return out
}

// newTerm uses the pod's own namespace if the term neither lists nor selects namespaces.
func newTerm(pod *corev1.Pod, term *corev1.PodAffinityTerm) AffinityTerm {
	t := AffinityTerm{
		Namespaces:        sets.New(term.Namespaces...),
		NamespaceSelector: selector(term.NamespaceSelector),
		Selector: WithLabelKeys(selector(term.LabelSelector), pod, term.MatchLabelKeys,
			term.MismatchLabelKeys),
		TopologyKey: term.TopologyKey,
	}
	if len(term.Namespaces) == 0 && term.NamespaceSelector == nil {
		t.Namespaces.Insert(pod.Namespace)
	}
	return t
}

// selector converts a metav1.LabelSelector. A nil or malformed one matches no pods.
func selector(s *metav1.LabelSelector) labels.Selector {
	out, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return labels.Nothing()
	}
	return out
}

// WithLabelKeys narrows a selector: the labels match must have the pod's own values, and the labels mismatch must
// not. The API server adds the same requirements to the selector when a pod is created; existing ones are not added
// again.
func WithLabelKeys(s labels.Selector, pod *corev1.Pod, match, mismatch []string) labels.Selector {
	s = withKeys(s, pod, match, selection.In)
	return withKeys(s, pod, mismatch, selection.NotIn)
}

func withKeys(s labels.Selector, pod *corev1.Pod, keys []string, operator selection.Operator) labels.Selector {
	for _, key := range keys {
		value, ok := pod.Labels[key]
		if !ok {
			continue
		}
		r, err := labels.NewRequirement(key, operator, []string{value})
		if err != nil {
			return labels.Nothing()
		}
		existing, selectable := s.Requirements()
		if selectable && !slices.ContainsFunc(existing, func(o labels.Requirement) bool { return o.Equal(*r) }) {
			s = s.Add(*r)
		}
	}
	return s
}
