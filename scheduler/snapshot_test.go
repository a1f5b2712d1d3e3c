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

func TestSnapshot_NodeIsReplacedBetweenTwoCycles(t *testing.T) {
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

// narrow is a plugin that narrows the nodes to a list.
type narrow []string

func (narrow) Name() string { return "Narrow" }

func (n narrow) PreFilter(*framework.CycleState, *framework.PodInfo, framework.Snapshot) (*framework.PreFilterResult,
	*framework.Status) {
	names := map[string]struct{}{}
	for _, name := range n {
		names[name] = struct{}{}
	}
	return &framework.PreFilterResult{NodeNames: names}, nil
}

// A nomination is a hint: the pod must not go to a node that a plugin has excluded, or that has no room any more.
func TestNominatedPods_RespectThePlugins(t *testing.T) {
	t.Parallel()
	s := testScheduler(t, nil)
	for _, name := range []string{"a", "b", "c"} {
		s.cache.setNode(testNode(name, "4", "110"))
	}
	pod := framework.NewPodInfo(testPod("p", "1"))
	nominated := func(name string) string {
		t.Helper()
		s.nominator.set(pod, name)
		node, err := s.place(pod)
		require.NoError(t, err)
		return node
	}
	require.Equal(t, "a", nominated("a"))
	require.Equal(t, "c", nominated("c"))
	s.cache.assume(framework.NewPodInfo(testPod("large", "4")), "a")
	require.NotEqual(t, "a", nominated("a"))

	p := s.profiles["default-scheduler"]
	p.preFilter = append(p.preFilter, step[framework.PreFilterPlugin]{plugin: narrow{"b"},
		evaluated: s.metrics.evaluations.WithLabelValues("Narrow", "PreFilter", "default-scheduler")})
	for _, name := range []string{"a", "b", "c", "gone"} {
		require.Equal(t, "b", nominated(name), "nominated for %s", name)
	}
}
