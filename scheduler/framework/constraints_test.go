package framework

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Each list that a cycle compares with pods or nodes must count, so that its author cannot make it arbitrarily
// long.
func TestNewPodInfo_WeighsConstraints(t *testing.T) {
	t.Parallel()
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"},
		MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "c", Operator: metav1.LabelSelectorOpIn,
			Values: []string{"d", "e", "f"}}}}
	term := corev1.PodAffinityTerm{TopologyKey: "zone", LabelSelector: selector, Namespaces: []string{"n", "o"},
		MatchLabelKeys: []string{"g"}, MismatchLabelKeys: []string{"h"}}
	weighted := []corev1.WeightedPodAffinityTerm{{Weight: 1, PodAffinityTerm: term}}
	const ofTerm = 50 + 50 + 50 + 3 + 2 + 50 + 50
	requirement := []corev1.NodeSelectorRequirement{{Key: "a", Operator: corev1.NodeSelectorOpIn,
		Values: []string{"b", "c"}}}
	nodes := corev1.NodeSelectorTerm{MatchExpressions: requirement, MatchFields: requirement}
	const ofNodes = 10 + 2*(10+2)
	always := corev1.ContainerRestartPolicyAlways
	ports := []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80}, {ContainerPort: 81}}
	for name, c := range map[string]struct {
		spec corev1.PodSpec
		want int
	}{
		"nothing":     {corev1.PodSpec{}, 0},
		"tolerations": {corev1.PodSpec{Tolerations: make([]corev1.Toleration, 3)}, 30},
		"selector":    {corev1.PodSpec{NodeSelector: map[string]string{"a": "b", "c": "d"}}, 20},
		"volumes":     {corev1.PodSpec{Volumes: make([]corev1.Volume, 2)}, 20},
		"host ports": {corev1.PodSpec{Containers: []corev1.Container{{Ports: ports}},
			InitContainers: []corev1.Container{{Ports: ports, RestartPolicy: &always}}}, 20},
		"spread": {corev1.PodSpec{TopologySpreadConstraints: []corev1.TopologySpreadConstraint{
			{LabelSelector: selector, MatchLabelKeys: []string{"g"}}, {}}}, 50 + 50 + 50 + 3 + 50 + 50},
		"required node affinity": {corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{nodes, nodes}}}}}, 2 * ofNodes},
		"preferred node affinity": {corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Preference: nodes}}}}},
			ofNodes},
		"affinity": {corev1.PodSpec{Affinity: &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution:  []corev1.PodAffinityTerm{term, term},
			PreferredDuringSchedulingIgnoredDuringExecution: weighted}}}, 3 * ofTerm},
		"anti-affinity": {corev1.PodSpec{Affinity: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution:  []corev1.PodAffinityTerm{term},
			PreferredDuringSchedulingIgnoredDuringExecution: weighted}}}, 2 * ofTerm},
	} {
		require.Equal(t, c.want, NewPodInfo(&corev1.Pod{Spec: c.spec}).Constraints, name)
	}
}

func TestNewPodInfo_DropsTheTermsOfAPodAboveTheLimit(t *testing.T) {
	t.Parallel()
	with := func(n int) *PodInfo {
		p := &corev1.Pod{Spec: corev1.PodSpec{Affinity: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{}}}}
		for i := range n {
			p.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution = append(
				p.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution,
				corev1.PodAffinityTerm{TopologyKey: fmt.Sprint("k", i),
					LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}})
		}
		return NewPodInfo(p)
	}
	largest := with(MaxConstraints / 100)
	require.Len(t, largest.RequiredAntiAffinity, MaxConstraints/100)
	require.True(t, largest.HasAffinity())
	require.False(t, with(MaxConstraints/100+1).HasAffinity())
}
