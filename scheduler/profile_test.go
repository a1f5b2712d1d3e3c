package scheduler

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/coxswain-dev/coxswain/scheduler/config"
	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// testScheduler returns a scheduler that does not run, for tests that call its steps themselves.
func testScheduler(t testing.TB, c *config.Config) *scheduler {
	o := Options{Config: c}
	o.complete()
	s, err := newScheduler(fake.NewClientset(), o)
	require.NoError(t, err)
	return s
}

// place runs a scheduling cycle on the present state of the cache.
func (s *scheduler) place(pod *framework.PodInfo) (string, error) {
	s.snapshot.update(s.cache)
	return s.profiles["default-scheduler"].place(context.Background(), &framework.CycleState{}, pod, s.snapshot)
}

func TestProfile_ReportsThePluginThatNarrowedTheNodes(t *testing.T) {
	t.Parallel()
	s := testScheduler(t, nil)
	c := s.cache
	c.setNode(testNode("a", "1", "110"))
	c.setNode(testNode("b", "1", "110"))
	pod := testPod("p", "2")
	pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
				{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}}}}},
		}}}
	_, err := s.place(framework.NewPodInfo(pod))
	require.EqualError(t, err,
		"0/2 nodes are available: 1 Insufficient cpu, 1 node(s) didn't satisfy plugin(s) [NodeAffinity]. "+
			"preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.")
}

func TestNodesToFind(t *testing.T) {
	t.Parallel()
	for nodes, want := range map[int]int{0: 0, 3: 3, 100: 100, 200: 100, 1000: 420, 5000: 500, 6000: 300, 20000: 1000} {
		require.Equal(t, want, nodesToFind(nodes, 0), "%d nodes", nodes)
	}
}
