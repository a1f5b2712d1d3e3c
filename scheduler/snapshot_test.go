package scheduler

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

func nodeNames(nodes []*framework.NodeInfo) (names []string) {
	for _, n := range nodes {
		names = append(names, n.Node.Name)
	}
	return names
}

func TestSnapshot_CopiesOnlyWhatHasChanged(t *testing.T) {
	t.Parallel()
	c, s := newCache(), newSnapshot()
	for i := range 100 {
		c.setNode(testNode(fmt.Sprintf("n%d", i), "4", "110"))
	}
	s.update(c)
	require.Len(t, s.Nodes(), 100)
	before := s.Node("n7")
	c.assume(framework.NewPodInfo(testPod("p", "1")), "n7")
	require.Zero(t, before.Requested.MilliCPU, "a cycle that goes on sees nothing of it")
	s.update(c)
	require.Equal(t, 1, s.copied)
	require.EqualValues(t, 1000, s.Node("n7").Requested.MilliCPU)
	s.update(c)
	require.Zero(t, s.copied)
	c.forget("uid-p")
	c.removeNode("n3")
	s.update(c)
	require.Zero(t, s.Node("n7").Requested.MilliCPU)
	require.Nil(t, s.Node("n3"))
	require.Len(t, s.Nodes(), 99)
}

func TestSnapshot_NodeGoesAndComesBetweenTwoCycles(t *testing.T) {
	t.Parallel()
	c, s := newCache(), newSnapshot()
	c.setNode(testNode("n", "4", "110"))
	s.update(c)
	c.removeNode("n")
	c.setNode(testNode("n", "8", "110"))
	s.update(c)
	require.EqualValues(t, 8000, s.Node("n").Allocatable.MilliCPU)
	require.Len(t, s.Nodes(), 1)
}

func TestSnapshot_AlternatesBetweenZones(t *testing.T) {
	t.Parallel()
	c, s := newCache(), newSnapshot()
	for i, zone := range []string{"a", "a", "a", "b", "c", "c"} {
		n := testNode(fmt.Sprintf("%s%d", zone, i), "4", "110")
		n.Labels[corev1.LabelTopologyZone] = zone
		c.setNode(n)
	}
	s.update(c)
	require.Equal(t, []string{"a0", "b3", "c4", "a1", "c5", "a2"}, nodeNames(s.Nodes()))
}

func TestSnapshot_ListsNodesWithAffinity(t *testing.T) {
	t.Parallel()
	c, s := newCache(), newSnapshot()
	c.setNode(testNode("a", "4", "110"))
	c.setNode(testNode("b", "4", "110"))
	s.update(c)
	p := testPod("p", "1")
	p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
			{LabelSelector: &metav1.LabelSelector{}, TopologyKey: corev1.LabelHostname}}}}
	c.assume(framework.NewPodInfo(p), "b")
	s.update(c)
	require.Equal(t, []string{"b"}, nodeNames(s.NodesWithAffinity()))
	require.Equal(t, []string{"b"}, nodeNames(s.NodesWithRequiredAntiAffinity()))
	c.forget(p.UID)
	s.update(c)
	require.Empty(t, s.NodesWithAffinity())
}

func TestSnapshot_CountsImages(t *testing.T) {
	t.Parallel()
	c, s := newCache(), newSnapshot()
	n := testNode("a", "4", "110")
	n.Status.Images = []corev1.ContainerImage{{Names: []string{"nginx:latest"}, SizeBytes: 1}}
	c.setNode(n)
	s.update(c)
	require.Equal(t, 1, s.ImageNodes("nginx:latest"))
	c.removeNode("a")
	s.update(c)
	require.Zero(t, s.ImageNodes("nginx:latest"))
}

func TestNominatedPods_KeepTheirRoom(t *testing.T) {
	t.Parallel()
	s := testScheduler(t, nil)
	s.cache.setNode(testNode("only", "2", "110"))
	high, higher := int32(10), int32(20)
	waits, low, above := testPod("waits", "2"), testPod("low", "1"), testPod("above", "1")
	waits.Spec.Priority, above.Spec.Priority = &high, &higher
	s.nominator.set(framework.NewPodInfo(waits), "only")
	_, err := s.place(framework.NewPodInfo(low))
	require.ErrorContains(t, err, "1 Insufficient cpu")
	node, err := s.place(framework.NewPodInfo(above))
	require.NoError(t, err, "a higher priority need not wait")
	require.Equal(t, "only", node)
	node, err = s.place(framework.NewPodInfo(waits))
	require.NoError(t, err)
	require.Equal(t, "only", node)
	s.nominator.forget(waits.UID)
	_, err = s.place(framework.NewPodInfo(low))
	require.NoError(t, err)
	require.True(t, s.nominator.none())
}

// A nomination is a hint: plugins that have narrowed the nodes to others are followed, and so are filters.
func TestNominatedPods_GoWhereTheyAreAllowed(t *testing.T) {
	t.Parallel()
	s := testScheduler(t, nil)
	for _, name := range []string{"a", "b", "c"} {
		s.cache.setNode(testNode(name, "4", "110"))
	}
	only := func(nodes ...string) *framework.PodInfo {
		pod := testPod("p", "1")
		pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
					{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: nodes}}}},
			}}}
		return framework.NewPodInfo(pod)
	}
	for _, tt := range []struct {
		nominated string
		pod       *framework.PodInfo
		want      string
	}{
		{"c", framework.NewPodInfo(testPod("p", "1")), "c"},
		{"b", only("b"), "b"},
		{"a", only("b"), "b"},
		{"gone", only("b"), "b"},
	} {
		s.nominator.set(tt.pod, tt.nominated)
		node, err := s.place(tt.pod)
		require.NoError(t, err)
		require.Equal(t, tt.want, node, "nominated for %s", tt.nominated)
	}
	s.cache.assume(framework.NewPodInfo(testPod("large", "4")), "a")
	s.nominator.set(framework.NewPodInfo(testPod("p", "1")), "a")
	node, err := s.place(framework.NewPodInfo(testPod("p", "1")))
	require.NoError(t, err)
	require.NotEqual(t, "a", node, "it has no room any more")
}
