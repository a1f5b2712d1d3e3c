package scheduler

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// model states the promises to users in the simplest form: may the pod be on that node, beside the placed pods?
// Every pod belongs to a group ("g"). It may have anti-affinity or affinity to its group in a topology, or be
// spread.
type model struct {
	nodes  map[string]*corev1.Node
	placed map[string]*corev1.Pod
}

func (m *model) allowed(node *corev1.Node, pod *corev1.Pod) error {
	cpu, count := pod.Spec.Containers[0].Resources.Requests.Cpu().DeepCopy(), int64(1)
	for _, p := range m.placed {
		if p.Spec.NodeName != node.Name {
			continue
		}
		count++
		cpu.Add(*p.Spec.Containers[0].Resources.Requests.Cpu())
		for _, port := range p.Spec.Containers[0].Ports {
			for _, want := range pod.Spec.Containers[0].Ports {
				if port.HostPort == want.HostPort {
					return errors.New("the port is taken")
				}
			}
		}
	}
	zone, selected := pod.Spec.NodeSelector["zone"]
	switch wants := pod.Spec.Containers[0].Resources.Requests.Cpu(); {
	case count > node.Status.Allocatable.Pods().Value():
		return errors.New("too many pods")
	case !wants.IsZero() && cpu.Cmp(*node.Status.Allocatable.Cpu()) > 0:
		return errors.New("not enough CPU")
	case len(pod.Spec.Tolerations) == 0 && (len(node.Spec.Taints) > 0 || node.Spec.Unschedulable):
		return errors.New("not tolerated")
	case selected && node.Labels["zone"] != zone:
		return errors.New("not selected")
	}
	return errors.Join(m.apart(node, pod), m.near(node, pod), m.spread(node, pod))
}

// apart checks that no pod of the group is in the same domain, if one of the two has anti-affinity.
func (m *model) apart(node *corev1.Node, pod *corev1.Pod) error {
	for _, p := range m.placed {
		other := m.nodes[p.Spec.NodeName]
		if other == nil || p.Labels["g"] != pod.Labels["g"] {
			continue
		}
		for _, key := range []string{antiAffinityKey(pod), antiAffinityKey(p)} {
			if key != "" && node.Labels[key] == other.Labels[key] {
				return fmt.Errorf("with %s in one %s", p.Name, key)
			}
		}
	}
	return nil
}

func antiAffinityKey(pod *corev1.Pod) string {
	if a := pod.Spec.Affinity; a != nil && a.PodAntiAffinity != nil {
		return a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].TopologyKey
	}
	return ""
}

// near checks that a pod of the group is in the same zone, or that there is none anywhere.
func (m *model) near(node *corev1.Node, pod *corev1.Pod) error {
	if a := pod.Spec.Affinity; a == nil || a.PodAffinity == nil {
		return nil
	}
	anywhere := false
	for _, p := range m.placed {
		if other := m.nodes[p.Spec.NodeName]; other != nil && p.Labels["g"] == pod.Labels["g"] {
			anywhere = true
			if other.Labels["zone"] == node.Labels["zone"] {
				return nil
			}
		}
	}
	if anywhere {
		return errors.New("alone in its zone")
	}
	return nil
}

// spread checks that no zone that the pod's selector allows has fewer pods of the group than maxSkew permits.
func (m *model) spread(node *corev1.Node, pod *corev1.Pod) error {
	if len(pod.Spec.TopologySpreadConstraints) == 0 {
		return nil
	}
	zones := map[string]int{}
	selected := func(n *corev1.Node) bool {
		zone, ok := pod.Spec.NodeSelector["zone"]
		return !ok || n.Labels["zone"] == zone
	}
	for _, n := range m.nodes {
		if selected(n) {
			zones[n.Labels["zone"]] += 0
		}
	}
	for _, p := range m.placed {
		if n := m.nodes[p.Spec.NodeName]; n != nil && selected(n) && p.Labels["g"] == pod.Labels["g"] {
			zones[n.Labels["zone"]]++
		}
	}
	for zone, n := range zones {
		if zones[node.Labels["zone"]]+1-n > int(pod.Spec.TopologySpreadConstraints[0].MaxSkew) &&
			zone != node.Labels["zone"] {
			return fmt.Errorf("%v with one more in %s", zones, node.Labels["zone"])
		}
	}
	return nil
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
	group := fmt.Sprint(r.IntN(4))
	pod.Labels = map[string]string{"g": group}
	if r.IntN(3) == 0 {
		pod.Spec.NodeSelector = map[string]string{"zone": fmt.Sprint(r.IntN(3))}
	}
	if r.IntN(3) == 0 {
		pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	}
	if r.IntN(3) == 0 {
		pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: int32(80 + r.IntN(3))}}
	}
	same := &metav1.LabelSelector{MatchLabels: pod.Labels}
	terms := func(key string) []corev1.PodAffinityTerm {
		return []corev1.PodAffinityTerm{{LabelSelector: same, TopologyKey: key}}
	}
	switch r.IntN(8) {
	case 0:
		pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: terms("zone")}}
	case 1:
		pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: terms(corev1.LabelHostname)}}
	case 2:
		pod.Spec.Affinity =
			&corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms(
				"zone")}}
	case 3:
		pod.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: int32(1 + r.IntN(2)), TopologyKey: "zone", WhenUnsatisfiable: corev1.DoNotSchedule,
			LabelSelector: same}}
	}
	return pod
}

// In any sequence of changes to pods and nodes, no placement may violate the model, and a pod may be rejected only
// if the model has no node for it.
func TestModel_NoPlacementViolatesAHardConstraint(t *testing.T) {
	t.Parallel()
	for seed := range uint64(10) {
		r := rand.New(rand.NewPCG(seed, 1))
		s := testScheduler(t, nil)
		m := &model{map[string]*corev1.Node{}, map[string]*corev1.Pod{}}
		for i := range 300 {
			switch n := r.IntN(10); {
			case n == 0:
				node := randomNode(r)
				m.nodes[node.Name] = node
				s.cache.setNode(node)
			case n == 1 && len(m.nodes) > 1:
				name := fmt.Sprintf("n%d", r.IntN(8))
				delete(m.nodes, name)
				s.cache.removeNode(name)
			case n == 2:
				for name, pod := range m.placed {
					delete(m.placed, name)
					require.NotNil(t, s.cache.removePod(pod.UID))
					break
				}
			default:
				m.try(t, s, randomPod(r, i), r.IntN(2) == 0)
			}
		}
	}
}

func (m *model) try(t *testing.T, s *scheduler, pod *corev1.Pod, confirm bool) {
	t.Helper()
	info := framework.NewPodInfo(pod)
	name, err := s.place(info)
	var refused *unplaceable
	if errors.As(err, &refused) {
		for _, node := range m.nodes {
			require.Error(t, m.allowed(node, pod), "%s would have suited pod %s, but: %v", node.Name, pod.Name, err)
		}
		return
	}
	require.NoError(t, err)
	require.Contains(t, m.nodes, name)
	require.NoError(t, m.allowed(m.nodes[name], pod), "pod %s on %s", pod.Name, name)
	s.cache.assume(info, name)
	bound := pod.DeepCopy()
	bound.Spec.NodeName = name
	m.placed[bound.Name] = bound
	if confirm {
		s.cache.setPod(framework.NewPodInfo(bound)) // as the informer does
	}
}

// The same with concurrent changes: pods and nodes are added and pods deleted while the scheduler runs, and some
// bindings fail. The API checks each binding against its objects. The pods have only constraints that a deletion
// cannot violate after the decision: none requires the presence of other pods.
func TestModel_NoBindingViolatesAHardConstraintInRaces(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Options{})
	pods := corev1.SchemeGroupVersion.WithResource("pods")
	nodes := corev1.SchemeGroupVersion.WithResource("nodes")
	var mu sync.Mutex
	var broken []string
	bindings := 0
	c.mu.Lock()
	c.check = func(pod *corev1.Pod, node string) error {
		mu.Lock()
		defer mu.Unlock()
		m := &model{map[string]*corev1.Node{}, map[string]*corev1.Pod{}}
		all, err := c.Tracker().List(pods, pods.GroupVersion().WithKind("Pod"), "default")
		if err != nil {
			return err
		}
		for _, p := range all.(*corev1.PodList).Items {
			if p.Spec.NodeName != "" {
				m.placed[p.Name] = &p
			}
		}
		there, err := c.Tracker().List(nodes, nodes.GroupVersion().WithKind("Node"), "")
		if err != nil {
			return err
		}
		for _, n := range there.(*corev1.NodeList).Items {
			m.nodes[n.Name] = &n
		}
		if err := m.allowed(m.nodes[node], pod); err != nil {
			broken = append(broken, fmt.Sprintf("pod %s on %s: %v", pod.Name, node, err))
		}
		if bindings++; bindings%7 == 0 {
			return errors.New("the API server is on fire")
		}
		return nil
	}
	c.mu.Unlock()

	ctx := context.Background()
	var churn sync.WaitGroup
	for w := range 4 {
		churn.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 2))
			for i := range 60 {
				pod := randomPod(r, w*1000+i)
				pod.Spec.TopologySpreadConstraints = nil
				if pod.Spec.Affinity != nil {
					pod.Spec.Affinity.PodAffinity = nil
				}
				_, err := c.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{})
				if err != nil {
					t.Error(err)
				}
				if r.IntN(3) == 0 {
					err := c.CoreV1().Pods("default").Delete(ctx, fmt.Sprintf("p%d", w*1000+r.IntN(i+1)),
						metav1.DeleteOptions{})
					if err != nil && !apierrors.IsNotFound(err) {
						t.Error(err)
					}
				}
				if i%15 == 0 {
					node := randomNode(r)
					node.Name = fmt.Sprintf("n%d-%d", w, i)
					node.Labels[corev1.LabelHostname] = node.Name
					node.Status.Allocatable[corev1.ResourcePods] = resource.MustParse("10")
					if _, err := c.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	churn.Wait()
	c.eventually("the queue has come to rest", func() bool {
		c.clock.Step(maxUnschedulable / 20)
		mu.Lock()
		defer mu.Unlock()
		return bindings > 30 && c.pending(active)+c.pending(backoff) == 0
	})
	mu.Lock()
	defer mu.Unlock()
	require.Empty(t, broken)
}
