package scheduler

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/coxswain-dev/coxswain/scheduler/config"
	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// testScheduler is one that nothing runs, for tests that make its steps themselves.
func testScheduler(t testing.TB, c *config.Config) *scheduler {
	o := Options{Config: c}
	o.complete()
	s, err := newScheduler(fake.NewClientset(), o)
	require.NoError(t, err)
	return s
}

// place runs a scheduling cycle on what the cache has now.
func (s *scheduler) place(pod *framework.PodInfo) (string, error) {
	s.snapshot.update(s.cache)
	return s.profiles["default-scheduler"].place(context.Background(), &framework.CycleState{}, pod, s.snapshot)
}

// The model is a plain sum over the pods that were placed. Whatever comes and goes, no
// placement may break it, and a pod is refused only where the model has no node for it.
func TestProfile_NoPlacementViolatesAHardConstraint(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		s := testScheduler(t, nil)
		c := s.cache
		nodes := map[string]*corev1.Node{}
		placed := map[string]*corev1.Pod{}
		for i := range 600 {
			switch n := r.IntN(10); {
			case n == 0:
				node := randomNode(r)
				nodes[node.Name] = node
				c.setNode(node)
			case n == 1 && len(nodes) > 1:
				name := fmt.Sprintf("n%d", r.IntN(8))
				delete(nodes, name)
				c.removeNode(name)
			case n == 2:
				for name, pod := range placed {
					delete(placed, name)
					require.NotNil(t, c.removePod(pod.UID))
					break
				}
			default:
				info := framework.NewPodInfo(randomPod(r, i))
				node, err := s.place(info)
				var refused *unplaceable
				if errors.As(err, &refused) {
					for _, node := range nodes {
						require.False(t, allowed(node, info.Pod, placed), "%s would have suited pod %s", node.Name, info.Pod.Name)
					}
					continue
				}
				require.NoError(t, err)
				require.Contains(t, nodes, node)
				require.True(t, allowed(nodes[node], info.Pod, placed), "pod %s on %s", info.Pod.Name, node)
				c.assume(info, node)
				bound := info.Pod.DeepCopy()
				bound.Spec.NodeName = node
				placed[bound.Name] = bound
				if r.IntN(2) == 0 {
					c.setPod(framework.NewPodInfo(bound)) // the informer confirms it
				}
			}
		}
	}
}

func randomNode(r *rand.Rand) *corev1.Node {
	node := testNode(fmt.Sprintf("n%d", r.IntN(8)), fmt.Sprint(1+r.IntN(8)), fmt.Sprint(1+r.IntN(10)))
	node.Labels["zone"] = fmt.Sprint(r.IntN(3))
	node.Spec.Unschedulable = r.IntN(6) == 0
	if r.IntN(4) == 0 {
		node.Spec.Taints = []corev1.Taint{{Key: "t", Value: "v", Effect: corev1.TaintEffectNoSchedule}}
	}
	return node
}

func randomPod(r *rand.Rand, i int) *corev1.Pod {
	pod := testPod(fmt.Sprintf("p%d", i), fmt.Sprintf("%dm", 100*r.IntN(15)))
	if r.IntN(3) == 0 {
		pod.Spec.NodeSelector = map[string]string{"zone": fmt.Sprint(r.IntN(3))}
	}
	if r.IntN(3) == 0 {
		pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	}
	if r.IntN(3) == 0 {
		pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: int32(80 + r.IntN(3))}}
	}
	return pod
}

// allowed is the model: may the pod be on that node beside those that are?
func allowed(node *corev1.Node, pod *corev1.Pod, placed map[string]*corev1.Pod) bool {
	cpu, ports, count := resource.Quantity{}, map[int32]bool{}, int64(0)
	for _, p := range placed {
		if p.Spec.NodeName == node.Name {
			count++
			cpu.Add(p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU])
			for _, port := range p.Spec.Containers[0].Ports {
				ports[port.HostPort] = true
			}
		}
	}
	want := pod.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU]
	cpu.Add(want)
	for _, port := range pod.Spec.Containers[0].Ports {
		if ports[port.HostPort] {
			return false
		}
	}
	tolerates := len(pod.Spec.Tolerations) > 0
	zone, selected := pod.Spec.NodeSelector["zone"]
	return count < node.Status.Allocatable.Pods().Value() &&
		(want.IsZero() || cpu.Cmp(*node.Status.Allocatable.Cpu()) <= 0) &&
		(tolerates || len(node.Spec.Taints) == 0 && !node.Spec.Unschedulable) &&
		(!selected || node.Labels["zone"] == zone)
}

func TestProfile_SaysWhichPluginNarrowedTheNodes(t *testing.T) {
	t.Parallel()
	s := testScheduler(t, nil)
	c := s.cache
	c.setNode(testNode("a", "1", "110"))
	c.setNode(testNode("b", "1", "110"))
	pod := testPod("p", "2")
	pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
			{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}}}}},
	}}}
	_, err := s.place(framework.NewPodInfo(pod))
	require.EqualError(t, err, "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) didn't satisfy plugin(s) [NodeAffinity]. "+
		"preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.")
}

func TestNodesToFind(t *testing.T) {
	t.Parallel()
	for nodes, want := range map[int]int{0: 0, 3: 3, 100: 100, 200: 100, 1000: 420, 5000: 500, 6000: 300, 20000: 1000} {
		require.Equal(t, want, nodesToFind(nodes, 0), "%d nodes", nodes)
	}
}

// BenchmarkPlace_5000Nodes is one scheduling cycle in a large cluster that fills up as it runs.
func BenchmarkPlace_5000Nodes(b *testing.B) {
	s := testScheduler(b, nil)
	c := s.cache
	for i := range 5000 {
		c.setNode(testNode(fmt.Sprintf("node-%d", i), "64", "1000"))
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		info := framework.NewPodInfo(testPod(fmt.Sprintf("p%d", i), "10m"))
		node, err := s.place(info)
		if err != nil {
			b.Fatal(err)
		}
		c.assume(info, node)
	}
}
