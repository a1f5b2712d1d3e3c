package scheduler

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// BenchmarkCycle_5000Nodes measures one scheduling cycle in a cluster of 5,000 nodes in 3 zones with 2,000 pods of
// the same kind, which fills up during the benchmark. The cases have the names of Kubernetes' scheduler_perf.
func BenchmarkCycle_5000Nodes(b *testing.B) {
	terms := func(key string) []corev1.PodAffinityTerm {
		return []corev1.PodAffinityTerm{{LabelSelector: &metav1.LabelSelector{MatchLabels: kind}, TopologyKey: key}}
	}
	for _, bm := range []struct {
		name string
		want func(*corev1.PodSpec)
	}{
		{"SchedulingBasic", func(*corev1.PodSpec) {}},
		{"SchedulingNodeAffinity", func(s *corev1.PodSpec) {
			s.NodeSelector = map[string]string{corev1.LabelTopologyZone: "zone-1"}
		}},
		{"SchedulingPodAntiAffinity", func(s *corev1.PodSpec) {
			s.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: terms(corev1.LabelHostname)}}
		}},
		{"SchedulingPreferredPodAffinity", func(s *corev1.PodSpec) {
			s.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
				PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{
					{Weight: 1, PodAffinityTerm: terms(corev1.LabelTopologyZone)[0]}}}}
		}},
		{"TopologySpreading", func(s *corev1.PodSpec) {
			s.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 5,
				TopologyKey:       corev1.LabelTopologyZone,
				WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: kind}}}
		}},
		{"Unschedulable", func(s *corev1.PodSpec) { s.NodeSelector = map[string]string{"no": "where"} }},
	} {
		b.Run(bm.name, func(b *testing.B) {
			benchmarkCycle(b, 5000, 2000, bm.want)
		})
	}
}

// BenchmarkCycle_1000Nodes50000Pods measures a cycle for a pod with soft spread constraints over nodes and zones,
// the default of every Deployment, among nodes with tens of pods.
func BenchmarkCycle_1000Nodes50000Pods(b *testing.B) {
	benchmarkCycle(b, 1000, 50_000, func(s *corev1.PodSpec) {
		s.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 3, TopologyKey: corev1.LabelHostname,
			WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: &metav1.LabelSelector{MatchLabels: kind}}}
	})
}

// kind are the labels of the pods of a benchmark.
var kind = map[string]string{"app": "a"}

func benchmarkCycle(b *testing.B, nodes, pods int, want func(*corev1.PodSpec)) {
	s := testScheduler(b, nil)
	for i := range nodes {
		n := testNode(fmt.Sprintf("node-%d", i), "64", "1000")
		n.Labels[corev1.LabelTopologyZone] = fmt.Sprintf("zone-%d", i%3)
		s.cache.setNode(n)
	}
	pod := func(i int) *framework.PodInfo {
		p := testPod(fmt.Sprintf("p%d", i), "10m")
		p.Labels = kind
		want(&p.Spec)
		return framework.NewPodInfo(p)
	}
	for i := range pods {
		s.cache.assume(pod(-i-1), fmt.Sprintf("node-%d", i%nodes))
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		info := pod(i)
		if node, err := s.place(info); err == nil {
			s.cache.assume(info, node)
		}
	}
}
