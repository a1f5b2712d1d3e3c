package plugins

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// made returns a plugin with arguments in YAML or none, and these objects in the API.
func made[P framework.Plugin](t testing.TB, name, args string, objects ...runtime.Object) P {
	t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(args))
	require.NoError(t, err)
	if args == "" {
		raw = nil
	}
	h := newTestHandle(t, objects...)
	plugin, err := Registry()[name](framework.Args{Raw: raw, Path: field.NewPath("args")}, h)
	require.NoError(t, err)
	h.start(t)
	return plugin.(P)
}

func node(change func(*corev1.Node), pods ...*corev1.Pod) *framework.NodeInfo {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"disk": "ssd"}},
		Status: corev1.NodeStatus{Allocatable: list("cpu", "4", "memory", "8Gi", "pods", "3", "ephemeral-storage",
			"10Gi", "example.com/gpu", "2")},
	}
	if change != nil {
		change(n)
	}
	info := framework.NewNodeInfo(n)
	for _, p := range pods {
		info.AddPod(framework.NewPodInfo(p))
	}
	return info
}

func list(pairs ...string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		l[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return l
}

func container(requests corev1.ResourceList) corev1.Container {
	return corev1.Container{Resources: corev1.ResourceRequirements{Requests: requests}}
}

func pod(name string, change func(*corev1.PodSpec), requests ...string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{container(list(requests...))}},
	}
	if change != nil {
		change(&p.Spec)
	}
	return p
}

func port(number int32, ip string, protocol corev1.Protocol) func(*corev1.PodSpec) {
	return func(s *corev1.PodSpec) {
		s.Containers[0].Ports = []corev1.ContainerPort{{HostPort: number, HostIP: ip, Protocol: protocol}}
	}
}

func affinity(terms ...corev1.NodeSelectorTerm) func(*corev1.PodSpec) {
	return func(s *corev1.PodSpec) {
		s.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms},
		}}
	}
}

func TestFilter(t *testing.T) {
	t.Parallel()
	fit, nodeAffinity := made[*NodeResourcesFit](t, "NodeResourcesFit", ""), &NodeAffinity{}
	always := corev1.ContainerRestartPolicyAlways
	taint := func(effect corev1.TaintEffect) func(*corev1.Node) {
		return func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "dedicated", Value: "db", Effect: effect}}
		}
	}
	cordoned := func(n *corev1.Node) { n.Spec.Unschedulable = true }
	diskIn := func(op corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "disk", Operator: op,
			Values: values}}}
	}
	tests := []struct {
		name    string
		plugin  framework.FilterPlugin
		pod     *corev1.Pod
		node    *framework.NodeInfo
		reasons []string // none: the node passes
	}{
		{"fits", fit, pod("p", nil, "cpu", "4", "memory", "8Gi"), node(nil), nil},
		{"cpu", fit, pod("p", nil, "cpu", "4001m"), node(nil), []string{"Insufficient cpu"}},
		{"cpu that others have", fit, pod("p", nil, "cpu", "1"), node(nil, pod("o", nil, "cpu", "3500m")),
			[]string{"Insufficient cpu"}},
		{"memory", fit, pod("p", nil, "memory", "9Gi"), node(nil), []string{"Insufficient memory"}},
		{"both", fit, pod("p", nil, "cpu", "5", "memory", "9Gi"), node(nil),
			[]string{"Insufficient cpu", "Insufficient memory"}},
		{"storage", fit, pod("p", nil, "ephemeral-storage", "11Gi"), node(nil),
			[]string{"Insufficient ephemeral-storage"}},
		{"extended", fit, pod("p", nil, "example.com/gpu", "2"), node(nil, pod("o", nil, "example.com/gpu", "1")),
			[]string{"Insufficient example.com/gpu"}},
		{"extended, not there at all", fit, pod("p", nil, "example.com/fpga", "1"), node(nil),
			[]string{"Insufficient example.com/fpga"}},
		{"extended, enough", fit, pod("p", nil, "example.com/gpu", "1"),
			node(nil, pod("o", nil, "example.com/gpu", "1")), nil},
		{"slots", fit, pod("p", nil), node(nil, pod("1", nil), pod("2", nil), pod("3", nil)),
			[]string{"Too many pods"}},
		{"nothing requested of an overcommitted node", fit, pod("p", nil), node(nil, pod("o", nil, "cpu", "9")), nil},
		{"the largest init container", fit, pod("p", func(s *corev1.PodSpec) {
			s.InitContainers = []corev1.Container{container(list("cpu", "3")), container(list("cpu", "5"))}
		}, "cpu", "1"), node(nil), []string{"Insufficient cpu"}},
		{"init containers are not summed", fit, pod("p", func(s *corev1.PodSpec) {
			s.InitContainers = []corev1.Container{container(list("cpu", "3")), container(list("cpu", "4"))}
		}, "cpu", "1"), node(nil), nil},
		{"sidecars are", fit, pod("p", func(s *corev1.PodSpec) {
			sidecar := container(list("cpu", "2"))
			sidecar.RestartPolicy = &always
			s.InitContainers = []corev1.Container{sidecar}
		}, "cpu", "3"), node(nil), []string{"Insufficient cpu"}},
		{"overhead", fit, pod("p", func(s *corev1.PodSpec) {
			s.Overhead = list("cpu", "100m")
		}, "cpu", "4"), node(nil), []string{"Insufficient cpu"}},

		{"named", NodeName{}, pod("p", func(s *corev1.PodSpec) { s.NodeName = "n" }), node(nil), nil},
		{"named otherwise", NodeName{}, pod("p", func(s *corev1.PodSpec) {
			s.NodeName = "m"
		}), node(nil), []string{"node(s) didn't match the requested node name"}},

		{"cordoned", NodeUnschedulable{}, pod("p", nil), node(cordoned), []string{"node(s) were unschedulable"}},
		{"cordoned and tolerated", NodeUnschedulable{}, pod("p", func(s *corev1.PodSpec) {
			s.Tolerations = []corev1.Toleration{{Key: corev1.TaintNodeUnschedulable,
				Operator: corev1.TolerationOpExists}}
		}), node(cordoned), nil},

		{"tainted", TaintToleration{}, pod("p", nil), node(taint(corev1.TaintEffectNoSchedule)),
			[]string{"node(s) had untolerated taint(s)"}},
		{"tainted NoExecute", TaintToleration{}, pod("p", nil), node(taint(corev1.TaintEffectNoExecute)),
			[]string{"node(s) had untolerated taint(s)"}},
		{"tainted softly", TaintToleration{}, pod("p", nil), node(taint(corev1.TaintEffectPreferNoSchedule)), nil},
		{"tainted and tolerated", TaintToleration{}, pod("p", func(s *corev1.PodSpec) {
			s.Tolerations = []corev1.Toleration{{Key: "dedicated", Value: "db", Effect: corev1.TaintEffectNoSchedule}}
		}), node(taint(corev1.TaintEffectNoSchedule)), nil},
		{"tolerated for another value", TaintToleration{}, pod("p", func(s *corev1.PodSpec) {
			s.Tolerations = []corev1.Toleration{{Key: "dedicated", Value: "web"}}
		}), node(taint(corev1.TaintEffectNoSchedule)), []string{"node(s) had untolerated taint(s)"}},

		{"selected", nodeAffinity, pod("p", func(s *corev1.PodSpec) {
			s.NodeSelector = map[string]string{"disk": "ssd"}
		}), node(nil), nil},
		{"not selected", nodeAffinity, pod("p", func(s *corev1.PodSpec) {
			s.NodeSelector = map[string]string{"disk": "tape"}
		}), node(nil), []string{"node(s) didn't match Pod's node affinity/selector"}},
		{"required", nodeAffinity, pod("p", affinity(diskIn(corev1.NodeSelectorOpIn, "nvme", "ssd"))), node(nil), nil},
		{"required, one of two terms", nodeAffinity,
			pod("p", affinity(diskIn(corev1.NodeSelectorOpIn, "tape"), diskIn(corev1.NodeSelectorOpExists))),
			node(nil), nil},
		{"required otherwise", nodeAffinity, pod("p", affinity(diskIn(corev1.NodeSelectorOpNotIn, "ssd"))), node(nil),
			[]string{"node(s) didn't match Pod's node affinity/selector"}},

		{"port free", NodePorts{}, pod("p", port(80, "", "")), node(nil, pod("o", port(81, "", ""))), nil},
		{"port taken", NodePorts{}, pod("p", port(80, "", "")), node(nil, pod("o", port(80, "", corev1.ProtocolTCP))),
			[]string{"node(s) didn't have free ports for the requested pod ports"}},
		{"port taken on all addresses", NodePorts{}, pod("p", port(80, "10.0.0.1", "")),
			node(nil, pod("o", port(80, "0.0.0.0", ""))),
			[]string{"node(s) didn't have free ports for the requested pod ports"}},
		{"port on another address", NodePorts{}, pod("p", port(80, "10.0.0.1", "")),
			node(nil, pod("o", port(80, "10.0.0.2", ""))), nil},
		{"port of another protocol", NodePorts{}, pod("p", port(80, "", corev1.ProtocolUDP)),
			node(nil, pod("o", port(80, "", corev1.ProtocolTCP))), nil},
	}
	for _, tt := range tests {
		t.Run(tt.plugin.Name()+"/"+tt.name, func(t *testing.T) {
			t.Parallel()
			state, info := &framework.CycleState{}, framework.NewPodInfo(tt.pod)
			if p, ok := tt.plugin.(framework.PreFilterPlugin); ok {
				if _, status := p.PreFilter(state, info, nil); status.Skipped() {
					require.Empty(t, tt.reasons, "the filter was skipped")
				}
			}
			status := tt.plugin.Filter(state, info, tt.node)
			require.Equal(t, tt.reasons, status.Reasons())
			require.Equal(t, len(tt.reasons) > 0, status.Rejected())
		})
	}
}

func TestNodeAffinity_NarrowsToNamedNodes(t *testing.T) {
	t.Parallel()
	nodeAffinity := &NodeAffinity{}
	named := corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{
		{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}}}}
	result, status := nodeAffinity.PreFilter(&framework.CycleState{}, framework.NewPodInfo(pod("p", affinity(named))),
		nil)
	require.True(t, status.OK())
	require.Equal(t, map[string]struct{}{"a": {}}, result.NodeNames)

	other := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "x",
		Operator: corev1.NodeSelectorOpExists}}}
	result, _ = nodeAffinity.PreFilter(&framework.CycleState{}, framework.NewPodInfo(pod("p", affinity(named, other))),
		nil)
	require.Nil(t, result)
}

func TestScore(t *testing.T) {
	t.Parallel()
	fit, nodeAffinity := made[*NodeResourcesFit](t, "NodeResourcesFit", ""), &NodeAffinity{}
	balanced := made[*NodeResourcesBalancedAllocation](t, "NodeResourcesBalancedAllocation", "")
	empty, half := node(nil), node(nil, pod("o", nil, "cpu", "2", "memory", "4Gi"))
	p := framework.NewPodInfo(pod("p", nil, "cpu", "1", "memory", "2Gi"))

	require.EqualValues(t, 75, fit.Score(nil, p, empty))
	require.EqualValues(t, 25, fit.Score(nil, p, half))
	require.EqualValues(t, 100, balanced.Score(nil, p, half))
	lopsided := framework.NewPodInfo(pod("l", nil, "cpu", "4"))
	require.EqualValues(t, 50, balanced.Score(nil, lopsided, empty))

	preferred := pod("p", func(s *corev1.PodSpec) {
		s.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 7,
				Preference: corev1.NodeSelectorTerm{
					MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "disk", Operator: corev1.NodeSelectorOpIn,
						Values: []string{"ssd"}}},
				}}},
		}}
	})
	state := &framework.CycleState{}
	require.True(t, nodeAffinity.PreScore(state, framework.NewPodInfo(preferred), nil, nil).OK())
	require.EqualValues(t, 7, nodeAffinity.Score(state, nil, node(nil)))
	require.Zero(t, nodeAffinity.Score(state, nil, node(func(n *corev1.Node) { n.Labels = nil })))

	scores := []int64{0, 1, 2}
	TaintToleration{}.NormalizeScore(nil, nil, nil, scores)
	require.Equal(t, []int64{100, 50, 0}, scores, "most taints, least score")
}

func TestSchedulingGates(t *testing.T) {
	t.Parallel()
	require.True(t, SchedulingGates{}.PreEnqueue(pod("p", nil)).OK())
	status := SchedulingGates{}.PreEnqueue(pod("p", func(s *corev1.PodSpec) {
		s.SchedulingGates = []corev1.PodSchedulingGate{{Name: "a"}, {Name: "b"}}
	}))
	require.Equal(t, []string{"waiting for scheduling gates: [a b]"}, status.Reasons())
}
