package admission

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// podOf returns a pod in the namespace default with a changed spec.
func podOf(change func(*corev1.PodSpec)) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: meta("p")}
	change(&pod.Spec)
	return pod
}

func namespaceOf(annotations map[string]string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Annotations: annotations}}
}

// inNamespace returns a world with an annotation on its namespace default.
func inNamespace(key, value string) *world {
	w := newWorld()
	w.objects[0] = namespaceOf(map[string]string{key: value})
	return w
}

func TestAlwaysPullImages_AppliesToEveryContainer(t *testing.T) {
	t.Parallel()
	const never = corev1.PullNever
	containers := map[string]func(*corev1.PodSpec){
		"spec.initContainers[1].imagePullPolicy": func(s *corev1.PodSpec) { s.InitContainers[1].ImagePullPolicy = never },
		"spec.containers[1].imagePullPolicy":     func(s *corev1.PodSpec) { s.Containers[1].ImagePullPolicy = never },
		"spec.ephemeralContainers[1].imagePullPolicy": func(s *corev1.PodSpec) {
			s.EphemeralContainers[1].ImagePullPolicy = never
		},
	}
	always := podOf(func(s *corev1.PodSpec) {
		c := corev1.Container{ImagePullPolicy: corev1.PullAlways}
		e := corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
			ImagePullPolicy: corev1.PullAlways}}
		s.InitContainers, s.Containers = []corev1.Container{c, c}, []corev1.Container{c, c}
		s.EphemeralContainers = []corev1.EphemeralContainer{e, e}
	})
	p := newWorld().plugin(t, "AlwaysPullImages", "")
	require.NoError(t, p.(Validator).Validate(t.Context(), creates(always)))
	for path, change := range containers {
		pod := always.DeepCopy()
		change(&pod.Spec)
		// A webhook may have changed the value that the plugin has set.
		requireDecision(t, decision{words: path + `: Unsupported value: "Never"`,
			reason: metav1.StatusReasonInvalid},
			p.(Validator).Validate(t.Context(), creates(pod)))
		require.NoError(t, newWorld().admit(t, "AlwaysPullImages", "", creates(pod)))
		require.Equal(t, always, pod, path)
	}
}

func TestLimitPodHardAntiAffinityTopology_AllowsHostsOnly(t *testing.T) {
	t.Parallel()
	zone, host := corev1.PodAffinityTerm{TopologyKey: "zone"},
		corev1.PodAffinityTerm{TopologyKey: corev1.LabelHostname}
	pod := func(a *corev1.Affinity) *Attributes {
		return creates(podOf(func(s *corev1.PodSpec) { s.Affinity = a }))
	}
	required := func(terms ...corev1.PodAffinityTerm) *Attributes {
		return pod(&corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: terms}})
	}
	newWorld().decides(t, "LimitPodHardAntiAffinityTopology", "", []decision{
		{name: "no affinity", write: pod(nil)},
		{name: "no anti-affinity", write: pod(&corev1.Affinity{})},
		{name: "hosts", write: required(host)},
		{name: "zones", write: required(zone),
			words: "has TopologyKey zone but only key kubernetes.io/hostname is allowed"},
		{name: "zones besides hosts", write: required(host, zone), words: "has TopologyKey zone"},
		{name: "zones if possible", write: pod(&corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{
				{PodAffinityTerm: zone}}}})},
	})
}

func TestPodNodeSelector_RestrictsPodsByNamespace(t *testing.T) {
	t.Parallel()
	pod := func(selector map[string]string) *corev1.Pod {
		return podOf(func(s *corev1.PodSpec) { s.NodeSelector = selector })
	}
	inNamespace(nodeSelectorAnnotation, "a=b").decides(t, "PodNodeSelector", "", []decision{
		{name: "no selector", write: creates(pod(nil))},
		{name: "another label", write: creates(pod(map[string]string{"c": "d"}))},
		{name: "another value", write: creates(pod(map[string]string{"a": "c"})),
			words: "pod node label selector conflicts with its namespace node label selector"},
	})
	inNamespace(nodeSelectorAnnotation, "a in (b)").decides(t, "PodNodeSelector", "", []decision{
		{name: "a malformed annotation", write: creates(pod(nil)),
			words: "annotation scheduler.alpha.kubernetes.io/node-selector of namespace default"},
	})
	nowhere := pod(nil)
	nowhere.Namespace = "none"
	newWorld().decides(t, "PodNodeSelector", "", []decision{
		{name: "no namespace", write: creates(nowhere), words: `namespaces "none" not found`,
			reason: metav1.StatusReasonNotFound},
	})
	const config = `{"podNodeSelectorPluginConfig": {"clusterDefaultNodeSelector": "x=y", "default": "a=b,x=y"}}`
	const words = "labels conflict with its namespace whitelist"
	newWorld().decides(t, "PodNodeSelector", config, []decision{
		{name: "an allowed label", write: creates(pod(map[string]string{"a": "b"}))},
		{name: "a value that is not allowed", write: creates(pod(map[string]string{"a": "c"})), words: words},
		{name: "a label that is not allowed", write: creates(pod(map[string]string{"c": "d"})), words: words},
	})
	created := pod(map[string]string{"a": "b"})
	require.NoError(t, newWorld().admit(t, "PodNodeSelector", config, creates(created)))
	require.Equal(t, map[string]string{"a": "b", "x": "y"}, created.Spec.NodeSelector,
		"with the cluster's default")
	err := newWorld().admit(t, "PodNodeSelector", `{"podNodeSelectorPluginConfig": {"default": "a in (b)"}}`,
		creates(pod(nil)))
	require.ErrorContains(t, err, "PodNodeSelector's configuration for namespace default")
}

func TestPriority_ComesFromTheClass(t *testing.T) {
	t.Parallel()
	class := func(name string, value int32, isDefault bool) *schedulingv1.PriorityClass {
		return &schedulingv1.PriorityClass{ObjectMeta: clusterMeta(name), Value: value,
			GlobalDefault: isDefault}
	}
	calm := class("calm", 5, false)
	calm.PreemptionPolicy = ptr.To(corev1.PreemptNever)
	pod := func(class string, priority *int32, policy *corev1.PreemptionPolicy) *corev1.Pod {
		return podOf(func(s *corev1.PodSpec) {
			s.PriorityClassName, s.Priority, s.PreemptionPolicy = class, priority, policy
		})
	}
	const number, text = "the integer value of priority (7) must not be provided",
		"the string value of PreemptionPolicy"
	newWorld(calm).decides(t, "Priority", "", []decision{
		{name: "none", write: creates(pod("", nil, nil))},
		{name: "no such class", write: creates(pod("none", nil, nil)),
			words: "no PriorityClass with name none was found"},
		{name: "the class's values", write: creates(pod("calm", ptr.To[int32](5),
			ptr.To(corev1.PreemptNever)))},
		{name: "another number", write: creates(pod("calm", ptr.To[int32](7), nil)), words: number},
		{name: "a number without a class", write: creates(pod("", ptr.To[int32](7), nil)), words: number},
		{name: "another policy", words: text + " (PreemptLowerPriority)",
			write: creates(pod("calm", nil, ptr.To(corev1.PreemptLowerPriority)))},
		{name: "a policy without a class", write: creates(pod("", nil, ptr.To(corev1.PreemptNever))),
			words: text + " (Never)"},
	})
	low, high := class("low", 1, true), class("high", 9, true)
	created := pod("", nil, nil)
	require.NoError(t, newWorld(high, calm, low).admit(t, "Priority", "", creates(created)))
	require.Equal(t, pod("low", ptr.To[int32](1), ptr.To(corev1.PreemptLowerPriority)), created,
		"the lowest of two defaults")

	updated := pod("", nil, nil)
	require.NoError(t, newWorld().admit(t, "Priority", "", updates(updated, created)))
	require.Equal(t, created, updated, "a manifest without what was set")

	newWorld(low).decides(t, "Priority", "", []decision{
		{name: "a class", write: creates(class("x", 2, false))},
		{name: "a second default", write: creates(class("x", 2, true)),
			words: "PriorityClass low is already marked as default"},
		{name: "a class that becomes a second default", write: updates(class("x", 2, true), class("x", 2,
			false)),
			words: "PriorityClass low is already marked as default"},
		{name: "the default itself", write: updates(low, low)},
	})
}

func TestRuntimeClass_SetsOverheadAndScheduling(t *testing.T) {
	t.Parallel()
	heavy, plain := &nodev1.RuntimeClass{ObjectMeta: clusterMeta("heavy")},
		&nodev1.RuntimeClass{ObjectMeta: clusterMeta("plain")}
	heavy.Overhead = &nodev1.Overhead{PodFixed: cpus("1")}
	heavy.Scheduling = &nodev1.Scheduling{NodeSelector: map[string]string{"a": "b"},
		Tolerations: []corev1.Toleration{{Key: "k", Operator: corev1.TolerationOpExists}}}
	pod := func(class string, overhead corev1.ResourceList, selector map[string]string) *corev1.Pod {
		return podOf(func(s *corev1.PodSpec) {
			if class != "" {
				s.RuntimeClassName = &class
			}
			s.Overhead, s.NodeSelector = overhead, selector
		})
	}
	w := newWorld(heavy, plain)
	const other = "Pod's Overhead doesn't match RuntimeClass's defined Overhead"
	const unasked = "Pod Overhead set without corresponding RuntimeClass defined Overhead"
	w.decides(t, "RuntimeClass", "", []decision{
		{name: "no class", write: creates(pod("", nil, nil))},
		{name: "no such class", write: creates(pod("none", nil, nil)), words: `RuntimeClass "none" not found`},
		{name: "its overhead", write: creates(pod("heavy", cpus("1"), nil))},
		{name: "another overhead", write: creates(pod("heavy", cpus("2"), nil)), words: other},
		{name: "an overhead without a class", write: creates(pod("", cpus("1"), nil)), words: unasked},
		{name: "an overhead that the class does not have", write: creates(pod("plain", cpus("1"), nil)),
			words: unasked},
		{name: "its nodes", write: creates(pod("heavy", nil, map[string]string{"a": "b", "c": "d"}))},
		{name: "other nodes", write: creates(pod("heavy", nil, map[string]string{"a": "c"})),
			words: "conflict: runtimeClass.scheduling.nodeSelector[a] = b; pod.spec.nodeSelector[a] = c"},
	})
	created := pod("heavy", nil, nil)
	require.NoError(t, w.admit(t, "RuntimeClass", "", creates(created)))
	require.Equal(t, cpus("1"), created.Spec.Overhead)
	require.Equal(t, map[string]string{"a": "b"}, created.Spec.NodeSelector)
	require.Equal(t, heavy.Scheduling.Tolerations, created.Spec.Tolerations)
	// A webhook may have changed the value that the plugin has set.
	v := w.plugin(t, "RuntimeClass", "").(Validator)
	requireDecision(t, decision{words: other}, v.Validate(t.Context(), creates(pod("heavy", cpus("2"), nil))))
	requireDecision(t, decision{words: other}, v.Validate(t.Context(), creates(pod("heavy", nil, nil))))
}

func TestPodTolerationRestriction_RestrictsPodsByNamespace(t *testing.T) {
	t.Parallel()
	a := corev1.Toleration{Key: "a", Operator: corev1.TolerationOpExists}
	b := corev1.Toleration{Key: "b", Operator: corev1.TolerationOpExists}
	pod := func(tolerations ...corev1.Toleration) *corev1.Pod {
		return podOf(func(s *corev1.PodSpec) { s.Tolerations = tolerations })
	}
	nowhere := pod()
	nowhere.Namespace = "none"
	const words = "conflict with its namespace whitelist"
	newWorld().decides(t, "PodTolerationRestriction", "", []decision{
		{name: "no list", write: creates(pod(a))},
		{name: "no namespace", write: creates(nowhere), words: `namespaces "none" not found`,
			reason: metav1.StatusReasonNotFound},
	})
	allowed := inNamespace(allowedTolerations, `[{"key":"a","operator":"Exists"}]`)
	allowed.decides(t, "PodTolerationRestriction", "", []decision{
		{name: "an allowed one", write: creates(pod(a))},
		{name: "another one", write: creates(pod(b)), words: words},
		{name: "another one besides", write: creates(pod(a, b)), words: words},
		{name: "another one by an update", write: updates(pod(b), pod()), words: words},
	})
	inNamespace(allowedTolerations, "{").decides(t, "PodTolerationRestriction", "", []decision{
		{name: "a malformed list", write: creates(pod()),
			words: "annotation " + allowedTolerations + " of namespace default"},
	})
	inNamespace(defaultTolerations, "{").decides(t, "PodTolerationRestriction", "", []decision{
		{name: "malformed defaults", write: creates(pod()),
			words: "annotation " + defaultTolerations + " of namespace default"},
	})
	inNamespace(defaultTolerations, `[{"key":"b","operator":"Exists"}]`).decides(t, "PodTolerationRestriction",
		`{"whitelist": [{"key": "a", "operator": "Exists"}]}`, []decision{
			{name: "a default that is not allowed", write: creates(pod()), words: words},
		})
	const config = `{"default": [{"key": "b", "operator": "Exists"}], "whitelist": [{"key": "a", "operator": "Exists"}]}`
	allowed.decides(t, "PodTolerationRestriction", config, []decision{
		{name: "the configured default", write: creates(pod()), words: words},
	})
	created := pod(a)
	created.Spec.Containers = []corev1.Container{container("c", "1", "")}
	require.NoError(t, newWorld().admit(t, "PodTolerationRestriction",
		`{"default": [{"key": "b", "operator": "Exists"}]}`, creates(created)))
	require.Equal(t, []corev1.Toleration{b, {Key: corev1.TaintNodeMemoryPressure,
		Operator: corev1.TolerationOpExists,
		Effect:   corev1.TaintEffectNoSchedule}, a}, created.Spec.Tolerations)
}

func TestExtendedResourceToleration_ToleratesDeviceTaints(t *testing.T) {
	t.Parallel()
	requests := corev1.ResourceList{}
	for _, name := range []corev1.ResourceName{"cpu", "example.com/gpu", "kubernetes.io/x", "sub.kubernetes.io/y",
		"requests.example.com/z"} {
		requests[name] = resource.MustParse("1")
	}
	early := corev1.Container{Resources: corev1.ResourceRequirements{Requests: requests}}
	pod := podOf(func(s *corev1.PodSpec) { s.InitContainers = []corev1.Container{early} })
	for range 2 {
		require.NoError(t, newWorld().admit(t, "ExtendedResourceToleration", "", creates(pod)))
		require.Equal(t, []corev1.Toleration{{Key: "example.com/gpu", Operator: corev1.TolerationOpExists}},
			pod.Spec.Tolerations)
	}
}

func TestDefaultTolerationSeconds_KeepsExistingTolerations(t *testing.T) {
	t.Parallel()
	seconds := func(own ...corev1.Toleration) (keys []string) {
		pod := podOf(func(s *corev1.PodSpec) { s.Tolerations = own })
		require.NoError(t, newWorld().admit(t, "DefaultTolerationSeconds", "", creates(pod)))
		for _, added := range pod.Spec.Tolerations[len(own):] {
			require.EqualValues(t, 300, *added.TolerationSeconds)
			keys = append(keys, added.Key)
		}
		return keys
	}
	const notReady, unreachable = corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable
	require.Equal(t, []string{notReady, unreachable}, seconds())
	require.Equal(t, []string{unreachable}, seconds(corev1.Toleration{Key: notReady}))
	require.Equal(t, []string{notReady}, seconds(corev1.Toleration{Key: unreachable,
		Effect: corev1.TaintEffectNoExecute}))
	require.Equal(t, []string{notReady, unreachable},
		seconds(corev1.Toleration{Key: notReady, Effect: corev1.TaintEffectNoSchedule}))
	require.Empty(t, seconds(corev1.Toleration{Operator: corev1.TolerationOpExists}))
}

func TestPodTopologyLabels_ComeFromTheNode(t *testing.T) {
	t.Parallel()
	node := &corev1.Node{ObjectMeta: clusterMeta("n")}
	node.Labels = map[string]string{corev1.LabelTopologyZone: "z", corev1.LabelTopologyRegion: "r", "a": "b"}
	w := newWorld(node, &corev1.Node{ObjectMeta: clusterMeta("bare")})
	want := map[string]string{corev1.LabelTopologyZone: "z", corev1.LabelTopologyRegion: "r", "own": "c"}
	own := func() map[string]string {
		return map[string]string{"own": "c",
			corev1.LabelTopologyZone: "claimed"}
	}

	pod := podOn("n", "p")
	pod.Labels = own()
	require.NoError(t, w.admit(t, "PodTopologyLabels", "", creates(pod)))
	require.Equal(t, want, pod.Labels)
	binding := &corev1.Binding{ObjectMeta: meta("p"), Target: corev1.ObjectReference{Name: "n"}}
	binding.Labels = own()
	require.NoError(t, w.admit(t, "PodTopologyLabels", "", subresource(creates(binding), "binding")))
	require.Equal(t, want, binding.Labels)
	for _, name := range []string{"", "none", "bare"} {
		pod := podOn(name, "p")
		require.NoError(t, w.admit(t, "PodTopologyLabels", "", creates(pod)))
		require.Empty(t, pod.Labels, name)
	}
}

func TestTaintNodesByCondition_TaintsNewNodesOnce(t *testing.T) {
	t.Parallel()
	node := &corev1.Node{ObjectMeta: clusterMeta("n")}
	node.Spec.Taints = []corev1.Taint{{Key: "own"}}
	want := append(node.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeNotReady,
		Effect: corev1.TaintEffectNoSchedule})
	for range 2 {
		require.NoError(t, newWorld().admit(t, "TaintNodesByCondition", "", creates(node)))
		require.Equal(t, want, node.Spec.Taints)
	}
}
