package plugins

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// app returns a pod with a label app, in namespace "default" or the given one.
func app(name, app string, namespace ...string) *corev1.Pod {
	p := pod(name, nil)
	p.Namespace, p.Labels = "default", map[string]string{"app": app, "version": "1"}
	if len(namespace) > 0 {
		p.Namespace = namespace[0]
	}
	p.UID = types.UID(p.Namespace + "/" + name)
	return p
}

func selects(app string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
}

func near(p *corev1.Pod, terms ...corev1.PodAffinityTerm) *corev1.Pod {
	if p.Spec.Affinity == nil {
		p.Spec.Affinity = &corev1.Affinity{}
	}
	p.Spec.Affinity.PodAffinity = &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}
	return p
}

func apart(p *corev1.Pod, terms ...corev1.PodAffinityTerm) *corev1.Pod {
	if p.Spec.Affinity == nil {
		p.Spec.Affinity = &corev1.Affinity{}
	}
	p.Spec.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}
	return p
}

// run runs PreFilter, and Filter for each node. It returns the reasons by node, "" for a node that
// passes.
func run(t *testing.T, plugin framework.FilterPlugin, p *corev1.Pod, nodes nodeList) map[string]string {
	t.Helper()
	state, info, got := &framework.CycleState{}, framework.NewPodInfo(p), map[string]string{}
	_, status := plugin.(framework.PreFilterPlugin).PreFilter(state, info, nodes)
	for _, node := range nodes {
		reason := ""
		switch {
		case status.Rejected():
			reason = status.Reasons()[0]
		case !status.Skipped():
			require.NoError(t, status.Err())
			if s := plugin.Filter(state, info, node); s.Rejected() {
				reason = s.Reasons()[0]
			} else {
				require.NoError(t, s.Err())
			}
		}
		got[node.Node.Name] = reason
	}
	return got
}

const (
	wantsNear = "node(s) didn't match pod affinity rules"
	wantsOff  = "node(s) didn't match pod anti-affinity rules"
	keptOff   = "node(s) didn't satisfy existing pods anti-affinity rules"
)

func TestInterPodAffinity_Filter(t *testing.T) {
	t.Parallel()
	plugin := made[*InterPodAffinity](t, "InterPodAffinity", "",
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: map[string]string{"team": "a"}}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other", Labels: map[string]string{"team": "b"}}})
	zone := func(s *metav1.LabelSelector) corev1.PodAffinityTerm {
		return corev1.PodAffinityTerm{LabelSelector: s, TopologyKey: "zone"}
	}
	inOther := zone(selects("db"))
	inOther.Namespaces = []string{"other"}
	inTeamB := zone(selects("db"))
	inTeamB.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "b"}}
	inAll := zone(selects("db"))
	inAll.NamespaceSelector = &metav1.LabelSelector{}
	sameVersion := zone(selects("db"))
	sameVersion.MatchLabelKeys = []string{"version"}
	otherVersion := zone(selects("db"))
	otherVersion.MismatchLabelKeys = []string{"version"}
	v2 := app("v2", "db")
	v2.Labels["version"] = "2"
	// a1 and a2 are in one zone, b in another, x in none.
	cluster := func(on1 ...*corev1.Pod) nodeList {
		return nodeList{labelled("a1", []string{"zone", "a"}, on1...), labelled("a2", []string{"zone", "a"}),
			labelled("b", []string{"zone", "b"}), labelled("x", nil)}
	}
	why := func(a1, a2, b, x string) map[string]string {
		return map[string]string{"a1": a1, "a2": a2, "b": b, "x": x}
	}
	for _, tt := range []struct {
		name  string
		pod   *corev1.Pod
		nodes nodeList
		want  map[string]string
	}{
		{"nothing to keep to", app("p", "web"), cluster(app("1", "db")), why("", "", "", "")},
		{"near a pod, in its zone", near(app("p", "web"), zone(selects("db"))), cluster(app("1", "db")),
			why("", "", wantsNear, wantsNear)},
		{"near a pod that is not there", near(app("p", "web"), zone(selects("db"))), cluster(),
			why(wantsNear, wantsNear, wantsNear, wantsNear)},
		{"the first of its kind", near(app("p", "web"), zone(selects("web"))), cluster(), why("", "", "", wantsNear)},
		{"not the first", near(app("p", "web"), zone(selects("web"))), cluster(app("1", "web")),
			why("", "", wantsNear, wantsNear)},
		{"near pods that match all terms", near(app("p", "web"), zone(selects("db")), zone(selects("cache"))),
			cluster(app("1", "db"), app("2", "cache")), why(wantsNear, wantsNear, wantsNear, wantsNear)},
		{"another namespace does not count", near(app("p", "web"), zone(selects("db"))),
			cluster(app("1", "db", "other")), why(wantsNear, wantsNear, wantsNear, wantsNear)},
		{"a named namespace", near(app("p", "web"), inOther), cluster(app("1", "db", "other")),
			why("", "", wantsNear, wantsNear)},
		{"a selected namespace", near(app("p", "web"), inTeamB), cluster(app("1", "db", "other")),
			why("", "", wantsNear, wantsNear)},
		{"not a selected namespace", near(app("p", "web"), inTeamB), cluster(app("1", "db")),
			why(wantsNear, wantsNear, wantsNear, wantsNear)},
		{"all namespaces", near(app("p", "web"), inAll), cluster(app("1", "db", "third")),
			why("", "", wantsNear, wantsNear)},
		{"matchLabelKeys: the same value", near(app("p", "web"), sameVersion), cluster(app("1", "db")),
			why("", "", wantsNear, wantsNear)},
		{"matchLabelKeys: another value", near(app("p", "web"), sameVersion), cluster(v2),
			why(wantsNear, wantsNear, wantsNear, wantsNear)},
		{"mismatchLabelKeys", near(app("p", "web"), otherVersion), cluster(v2), why("", "", wantsNear, wantsNear)},
		{"off a pod, out of its zone", apart(app("p", "web"), zone(selects("db"))), cluster(app("1", "db")),
			why(wantsOff, wantsOff, "", "")},
		{"off its own kind", apart(app("p", "web"), zone(selects("web"))), cluster(app("1", "web")),
			why(wantsOff, wantsOff, "", "")},
		{"kept off by one that is there", app("p", "web"), cluster(apart(app("1", "db"), zone(selects("web")))),
			why(keptOff, keptOff, "", "")},
		{"kept off by one of another namespace", app("p", "db", "other"), cluster(apart(app("1", "web"), inTeamB)),
			why(keptOff, keptOff, "", "")},
		{"not kept off", app("p", "web"), cluster(apart(app("1", "db"), zone(selects("cache")))), why("", "", "", "")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tt.want, run(t, plugin, tt.pod, tt.nodes))
		})
	}
}

func TestInterPodAffinity_WhatIf(t *testing.T) {
	t.Parallel()
	plugin := made[*InterPodAffinity](t, "InterPodAffinity", "")
	db := framework.NewPodInfo(app("1", "db"))
	nodes := nodeList{labelled("a", []string{"zone", "a"}, db.Pod)}
	state, p := &framework.CycleState{},
		framework.NewPodInfo(apart(app("p", "web"), corev1.PodAffinityTerm{LabelSelector: selects("db"),
			TopologyKey: "zone"}))
	_, status := plugin.PreFilter(state, p, nodes)
	require.True(t, status.OK())
	simulated := state.Clone()
	plugin.RemovePod(simulated, p, db, nodes[0])
	require.True(t, plugin.Filter(simulated, p, nodes[0]).OK())
	require.True(t, plugin.Filter(state, p, nodes[0]).Rejected(), "the clone is its own")
	plugin.AddPod(simulated, p, db, nodes[0])
	require.True(t, plugin.Filter(simulated, p, nodes[0]).Rejected())
}

// scored returns the normalized scores by node.
func scored(t *testing.T, plugin framework.ScorePlugin, p *corev1.Pod, nodes nodeList) map[string]int64 {
	t.Helper()
	state, info := &framework.CycleState{}, framework.NewPodInfo(p)
	if pre, ok := plugin.(framework.PreScorePlugin); ok {
		if status := pre.PreScore(state, info, nodes, nodes); status.Skipped() {
			return nil
		}
	}
	var scores []int64
	for _, node := range nodes {
		scores = append(scores, plugin.Score(state, info, node))
	}
	if n, ok := plugin.(framework.ScoreNormalizer); ok {
		n.NormalizeScore(state, info, nodes, scores)
	}
	got := map[string]int64{}
	for i, node := range nodes {
		got[node.Node.Name] = scores[i]
	}
	return got
}

func TestInterPodAffinity_Score(t *testing.T) {
	t.Parallel()
	plugin := made[*InterPodAffinity](t, "InterPodAffinity", "")
	term := corev1.PodAffinityTerm{LabelSelector: selects("db"), TopologyKey: "zone"}
	prefers := func(p *corev1.Pod, weight int32) *corev1.Pod {
		p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: weight,
				PodAffinityTerm: term}}}}
		return p
	}
	shuns := func(p *corev1.Pod, weight int32) *corev1.Pod {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: weight,
				PodAffinityTerm: term}}}}
		return p
	}
	cluster := func(on ...*corev1.Pod) nodeList {
		return nodeList{labelled("a", []string{"zone", "a"}, on...), labelled("b", []string{"zone", "b"})}
	}
	require.Equal(t, map[string]int64{"a": 100, "b": 0}, scored(t, plugin, prefers(app("p", "web"), 5),
		cluster(app("1", "db"))))
	require.Equal(t, map[string]int64{"a": 0, "b": 100},
		scored(t, plugin, shuns(app("p", "web"), 5), cluster(app("1", "db"))))
	require.Equal(t, map[string]int64{"a": 100, "b": 0},
		scored(t, plugin, app("p", "db"), cluster(prefers(app("1", "web"), 5))),
		"those that are there have preferences, too")
	require.Equal(t, map[string]int64{"a": 100, "b": 0},
		scored(t, plugin, app("p", "db"), cluster(near(app("1", "web"), term))), "and so counts what they require")
	require.Nil(t, scored(t, plugin, app("p", "web"), cluster(app("1", "db"))))
	ignoring := made[*InterPodAffinity](t, "InterPodAffinity",
		"{hardPodAffinityWeight: 0, ignorePreferredTermsOfExistingPods: true}")
	require.Nil(t, scored(t, ignoring, app("p", "db"), cluster(prefers(app("1", "web"), 5))))
}

func spread(p *corev1.Pod, constraints ...corev1.TopologySpreadConstraint) *corev1.Pod {
	p.Spec.TopologySpreadConstraints = constraints
	return p
}

func TestPodTopologySpread_Filter(t *testing.T) {
	t.Parallel()
	plugin := made[*PodTopologySpread](t, "PodTopologySpread", "")
	zone := corev1.TopologySpreadConstraint{MaxSkew: 1, TopologyKey: "zone", WhenUnsatisfiable: corev1.DoNotSchedule,
		LabelSelector: selects("web")}
	with := func(change func(*corev1.TopologySpreadConstraint)) corev1.TopologySpreadConstraint {
		c := zone
		change(&c)
		return c
	}
	host := with(func(c *corev1.TopologySpreadConstraint) { c.TopologyKey = corev1.LabelHostname })
	going := app("g", "web")
	going.DeletionTimestamp = &metav1.Time{}
	v2 := app("v2", "web")
	v2.Labels["version"] = "2"
	const skewed, unlabelled = "node(s) didn't match pod topology spread constraints",
		"node(s) didn't match pod topology spread constraints (missing required label)"
	cluster := func(onA ...*corev1.Pod) nodeList {
		tainted := labelled("c", []string{"zone", "c"})
		tainted.Node.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}
		return nodeList{labelled("a", []string{"zone", "a"}, onA...),
			labelled("b", []string{"zone", "b"}, app("b", "web")), tainted, labelled("x", nil)}
	}
	full := func() nodeList {
		n := cluster(app("1", "web"))
		n[2].AddPod(framework.NewPodInfo(app("c", "web")))
		return n
	}
	why := func(a, b, c, x string) map[string]string {
		return map[string]string{"a": a, "b": b, "c": c, "x": x}
	}
	onlyAB := func(p *corev1.Pod) *corev1.Pod {
		zones := corev1.NodeSelectorRequirement{Key: "zone", Operator: corev1.NodeSelectorOpIn,
			Values: []string{"a", "b"}}
		term := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{zones}}
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{term}}}}
		return p
	}
	for _, tt := range []struct {
		name  string
		pod   *corev1.Pod
		nodes nodeList
		want  map[string]string
	}{
		{"no constraint", app("p", "web"), cluster(), why("", "", "", "")},
		{"to the empty zones", spread(app("p", "web"), zone), cluster(), why("", skewed, "", unlabelled)},
		{"to any when even", spread(app("p", "web"), zone), full(), why("", "", "", unlabelled)},
		{"a larger skew", spread(app("p", "web"), with(func(c *corev1.TopologySpreadConstraint) {
			c.MaxSkew = 2
		})), cluster(app("1", "web"), app("2", "web")), why(skewed, "", "", unlabelled)},
		{"pods that are going do not count", spread(app("p", "web"), zone), cluster(going),
			why("", skewed, "", unlabelled)},
		{"pods of other namespaces do not count", spread(app("p", "web"), zone), cluster(app("o", "web", "other")),
			why("", skewed, "", unlabelled)},
		{"a pod that is not one of them adds nothing", spread(app("p", "db"), zone), cluster(),
			why("", "", "", unlabelled)},
		{"domains that affinity leaves out do not count", onlyAB(spread(app("p", "web"), zone)),
			cluster(app("1", "web")), why("", "", "", unlabelled)},
		{"they do with nodeAffinityPolicy Ignore",
			onlyAB(spread(app("p", "web"), with(func(c *corev1.TopologySpreadConstraint) {
				c.NodeAffinityPolicy = ptr.To(corev1.NodeInclusionPolicyIgnore)
			}))), cluster(app("1", "web")), why(skewed, skewed, "", unlabelled)},
		{"tainted domains count", spread(app("p", "web"), zone), cluster(app("1", "web")),
			why(skewed, skewed, "", unlabelled)},
		{"they do not with nodeTaintsPolicy Honor",
			spread(app("p", "web"), with(func(c *corev1.TopologySpreadConstraint) {
				c.NodeTaintsPolicy = ptr.To(corev1.NodeInclusionPolicyHonor)
			})), cluster(app("1", "web")), why("", "", "", unlabelled)},
		{"fewer domains than minDomains", spread(app("p", "web"), with(func(c *corev1.TopologySpreadConstraint) {
			c.MinDomains = ptr.To[int32](4)
		})), full(), why(skewed, skewed, skewed, unlabelled)},
		{"matchLabelKeys", spread(app("p", "web"), with(func(c *corev1.TopologySpreadConstraint) {
			c.MatchLabelKeys = []string{"version"}
		})), cluster(v2), why("", skewed, "", unlabelled)},
		{"two constraints", spread(app("p", "web"), zone, host), cluster(), why("", skewed, "", unlabelled)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tt.want, run(t, plugin, tt.pod, tt.nodes))
		})
	}
}

func TestPodTopologySpread_WhatIf(t *testing.T) {
	t.Parallel()
	plugin := made[*PodTopologySpread](t, "PodTopologySpread", "")
	p := framework.NewPodInfo(spread(app("p", "web"), corev1.TopologySpreadConstraint{MaxSkew: 1, TopologyKey: "zone",
		WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: selects("web")}))
	other := framework.NewPodInfo(app("1", "web"))
	nodes := nodeList{labelled("a", []string{"zone", "a"}, other.Pod), labelled("b", []string{"zone", "b"})}
	state := &framework.CycleState{}
	plugin.PreFilter(state, p, nodes)
	require.True(t, plugin.Filter(state, p, nodes[0]).Rejected())
	simulated := state.Clone()
	plugin.RemovePod(simulated, p, other, nodes[0])
	require.True(t, plugin.Filter(simulated, p, nodes[0]).OK())
	plugin.AddPod(simulated, p, other, nodes[1])
	require.True(t, plugin.Filter(simulated, p, nodes[1]).Rejected())
	require.True(t, plugin.Filter(state, p, nodes[0]).Rejected(), "the clone is its own")
}

func TestPodTopologySpread_Score(t *testing.T) {
	t.Parallel()
	nodes := nodeList{
		labelled("a", []string{corev1.LabelTopologyZone, "a"}, app("1", "web"), app("2", "web")),
		labelled("b", []string{corev1.LabelTopologyZone, "b"}, app("3", "web")),
		labelled("x", nil),
	}
	plugin := made[*PodTopologySpread](t, "PodTopologySpread", "",
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"},
			Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "web"}}})
	p := spread(app("p", "web"), corev1.TopologySpreadConstraint{MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone,
		WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: selects("web")})
	require.Equal(t, map[string]int64{"a": 33, "b": 100, "x": 0}, scored(t, plugin, p, nodes),
		"fewer are better; a node without the label is last")
	byService := scored(t, plugin, app("p", "web"), nodes)
	require.Greater(t, byService["b"], byService["a"], "the pods of a Service spread by default")
	require.Nil(t, scored(t, plugin, app("p", "alone"), nodes), "who belongs to nothing has nothing to spread")
	off := made[*PodTopologySpread](t, "PodTopologySpread", "{defaultingType: List}")
	require.Nil(t, scored(t, off, app("p", "web"), nodes))
}

func TestImageLocality(t *testing.T) {
	t.Parallel()
	image := func(n *framework.NodeInfo, name string, mib int64) *framework.NodeInfo {
		node := n.Node.DeepCopy()
		node.Status.Images = []corev1.ContainerImage{{Names: []string{name}, SizeBytes: mib << 20}}
		return framework.NewNodeInfo(node)
	}
	p := pod("p", func(s *corev1.PodSpec) { s.Containers[0].Image = "registry:5000/big" })
	nodes := nodeList{image(labelled("has", nil), "registry:5000/big:latest", 2000), labelled("not", nil)}
	require.Equal(t, map[string]int64{"has": 100, "not": 0}, scored(t, &ImageLocality{}, p, nodes))
	nodes = append(nodes, labelled("a", nil), labelled("b", nil))
	require.EqualValues(t, 48, scored(t, &ImageLocality{}, p, nodes)["has"],
		"one node of four has it: it counts a quarter")
	require.Nil(t, scored(t, &ImageLocality{}, pod("q", func(s *corev1.PodSpec) {
		s.Containers[0].Image = "unknown"
	}), nodes))
}

func TestNodeResourcesFit_Strategies(t *testing.T) {
	t.Parallel()
	empty, half := node(nil), node(nil, pod("o", nil, "cpu", "2", "memory", "4Gi"))
	p := framework.NewPodInfo(pod("p", nil, "cpu", "1", "memory", "2Gi"))
	for args, want := range map[string][2]int64{
		"{scoringStrategy: {type: LeastAllocated}}":                                       {75, 25},
		"{scoringStrategy: {type: MostAllocated}}":                                        {25, 75},
		"{scoringStrategy: {type: LeastAllocated, resources: [{name: example.com/gpu}]}}": {0, 0},
		`{scoringStrategy: {type: RequestedToCapacityRatio, requestedToCapacityRatio: {
			shape: [{utilization: 0, score: 0}, {utilization: 50, score: 10}, {utilization: 100, score: 0}]}}}`: {50, 50},
	} {
		fit := made[*NodeResourcesFit](t, "NodeResourcesFit", args)
		require.Equal(t, want, [2]int64{fit.Score(nil, p, empty), fit.Score(nil, p, half)}, args)
	}
	ignoring := made[*NodeResourcesFit](t, "NodeResourcesFit",
		"{ignoredResources: [example.com/fpga], ignoredResourceGroups: [other.com]}")
	require.True(t, ignoring.Filter(nil,
		framework.NewPodInfo(pod("p", nil, "example.com/fpga", "1", "other.com/x", "1")), empty).OK())
	require.Equal(t, framework.UnschedulableAndUnresolvable,
		ignoring.Filter(nil, framework.NewPodInfo(pod("p", nil, "cpu", "5")), empty).Code(),
		"preemption would not help")
	require.Equal(t, framework.Unschedulable, ignoring.Filter(nil, framework.NewPodInfo(pod("p", nil, "cpu", "3")),
		half).Code())
}

func TestNodeAffinity_AddedByTheProfile(t *testing.T) {
	t.Parallel()
	p := made[*NodeAffinity](t, "NodeAffinity", `
addedAffinity:
  requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: In, values: [a]}]}]}
  preferredDuringSchedulingIgnoredDuringExecution: [{weight: 3, preference: {matchExpressions: [{key: disk, operator: Exists}]}}]`)
	nodes := nodeList{labelled("a", []string{"zone", "a", "disk", "ssd"}), labelled("b", []string{"zone", "b"})}
	require.Equal(t, map[string]string{"a": "", "b": "node(s) didn't match scheduler-enforced node affinity"},
		run(t, p, pod("p", nil), nodes))
	require.Equal(t, map[string]int64{"a": 100, "b": 0}, scored(t, p, pod("p", nil), nodes))
}
