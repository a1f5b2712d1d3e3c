package framework

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MaxConstraints limits the PodInfo.Constraints of a pod that is scheduled: nearly a hundred terms about other
// pods, or a thousand expressions about nodes. The API has no such limit, and pods are scheduled one after the
// other: without it, a user with the right to create pods could keep the scheduler from the pods of all others.
const MaxConstraints = 10_000

// The weights of a pod's constraints. Each is proportional to the time of a comparison with all pods or nodes.
const (
	weightOfPods  = 50 // a term about other pods, or an expression in it: compared with each pod
	weightOfNodes = 10 // an expression that is compared with each node
	weightOfValue = 1  // one of the values of an expression
)

// constraintsOf returns the weight of all constraints of a pod on its node. ports is the number of its host ports.
func constraintsOf(spec *corev1.PodSpec, ports int) int {
	n := weightOfNodes * (ports + len(spec.Tolerations) + len(spec.NodeSelector) + len(spec.Volumes))
	for i := range spec.TopologySpreadConstraints {
		c := &spec.TopologySpreadConstraints[i]
		n += weightOfPods*(1+len(c.MatchLabelKeys)) + weightOfSelector(c.LabelSelector)
	}
	if a := spec.Affinity; a != nil {
		n += weightOfNodeAffinity(a.NodeAffinity)
		if pa := a.PodAffinity; pa != nil {
			n += weightOfTerms(pa.RequiredDuringSchedulingIgnoredDuringExecution,
				pa.PreferredDuringSchedulingIgnoredDuringExecution)
		}
		if pa := a.PodAntiAffinity; pa != nil {
			n += weightOfTerms(pa.RequiredDuringSchedulingIgnoredDuringExecution,
				pa.PreferredDuringSchedulingIgnoredDuringExecution)
		}
	}
	return n
}

func weightOfTerms(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) int {
	n := 0
	for i := range required {
		n += weightOfTerm(&required[i])
	}
	for i := range preferred {
		n += weightOfTerm(&preferred[i].PodAffinityTerm)
	}
	return n
}

func weightOfTerm(t *corev1.PodAffinityTerm) int {
	return weightOfPods*(1+len(t.MatchLabelKeys)+len(t.MismatchLabelKeys)) + weightOfValue*len(t.Namespaces) +
		weightOfSelector(t.LabelSelector) + weightOfSelector(t.NamespaceSelector)
}

func weightOfSelector(s *metav1.LabelSelector) int {
	if s == nil {
		return 0
	}
	n := weightOfPods * (len(s.MatchLabels) + len(s.MatchExpressions))
	for i := range s.MatchExpressions {
		n += weightOfValue * len(s.MatchExpressions[i].Values)
	}
	return n
}

func weightOfNodeAffinity(a *corev1.NodeAffinity) int {
	if a == nil {
		return 0
	}
	n := 0
	if required := a.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
		for i := range required.NodeSelectorTerms {
			n += weightOfNodeTerm(&required.NodeSelectorTerms[i])
		}
	}
	for i := range a.PreferredDuringSchedulingIgnoredDuringExecution {
		n += weightOfNodeTerm(&a.PreferredDuringSchedulingIgnoredDuringExecution[i].Preference)
	}
	return n
}

func weightOfNodeTerm(t *corev1.NodeSelectorTerm) int {
	n := weightOfNodes * (1 + len(t.MatchExpressions) + len(t.MatchFields))
	for _, list := range [][]corev1.NodeSelectorRequirement{t.MatchExpressions, t.MatchFields} {
		for i := range list {
			n += weightOfValue * len(list[i].Values)
		}
	}
	return n
}
