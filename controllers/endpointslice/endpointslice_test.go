package endpointslice_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
	"github.com/coxswain-dev/coxswain/internal/series/seriestest"
	"github.com/coxswain-dev/coxswain/testenv"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

// network is an API server with the endpoint controllers; the test plays nodes and pods.
type network struct{ *controllertest.Cluster }

// newNetwork starts an API server with the endpoint controllers; the test plays nodes and pods.
func newNetwork(t testing.TB, more ...string) network {
	config := testenv.Start(t, testenv.OrExternal(), testenv.WithNodes(0), testenv.WithoutScheduler(),
		testenv.WithControllers(append(more, "endpointslice", "endpoint", "garbagecollector")...))
	c := network{controllertest.At(t, config)}
	for i, zone := range []string{"east", "west"} {
		c.CreateNode(fmt.Sprint("node-", i), func(n *corev1.Node) {
			n.Labels = map[string]string{corev1.LabelTopologyZone: zone}
		})
	}
	return c
}

func (c network) service(name string, edit func(*corev1.Service)) *corev1.Service {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"team": "blue"}},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": name},
			Ports:    []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromString("web")}},
		},
	}
	if edit != nil {
		edit(svc)
	}
	svc, err := c.Client.CoreV1().Services("default").Create(c.Context(), svc, metav1.CreateOptions{})
	require.NoError(c, err)
	return svc
}

// backendPod creates a ready pod of "web" with an address on a node.
func (c network) backendPod(i int, edit func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("web-", i), Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{NodeName: fmt.Sprint("node-", i%2), Containers: []corev1.Container{{
			Name: "c", Image: "one", Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 8080}}}}},
	}
	if edit != nil {
		edit(pod)
	}
	pod, err := c.Client.CoreV1().Pods("default").Create(c.Context(), pod, metav1.CreateOptions{})
	require.NoError(c, err)
	pod.Status.Phase = corev1.PodRunning
	pod.Status.PodIP = fmt.Sprintf("10.%d.%d.%d", i/62500, i/250%250, i%250+1)
	pod.Status.PodIPs = []corev1.PodIP{{IP: pod.Status.PodIP}}
	return c.setReady(pod, true)
}

func (c network) setReady(pod *corev1.Pod, ready bool) *corev1.Pod {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status,
		LastTransitionTime: metav1.Now()}}
	pod, err := c.Client.CoreV1().Pods("default").UpdateStatus(c.Context(), pod, metav1.UpdateOptions{})
	require.NoError(c, err)
	return pod
}

// endpointsOf returns the conditions of a Service's endpoints by pod: r(eady) s(erving) t(erminating).
func (c network) endpointsOf(service string) map[string]string {
	found := map[string]string{}
	for _, s := range c.Slices(service) {
		for _, e := range s.Endpoints {
			text := ""
			for letter, is := range map[string]*bool{"r": e.Conditions.Ready, "s": e.Conditions.Serving,
				"t": e.Conditions.Terminating} {
				if is != nil && *is {
					text += letter
				}
			}
			found[e.TargetRef.Name] = sortLetters(text)
		}
	}
	return found
}

func sortLetters(s string) string {
	b := []byte(s)
	slices.Sort(b)
	return string(b)
}

func (c network) awaitEndpoints(service string, want map[string]string) {
	c.Helper()
	var got map[string]string
	defer func() {
		if c.Failed() {
			c.Logf("endpoints of %s: %v, want %v", service, got, want)
		}
	}()
	c.Eventually("endpoints of "+service, func() bool {
		got = c.endpointsOf(service)
		return maps.Equal(got, want)
	})
}

// legacy returns the ready and the unready addresses of the Endpoints object.
func (c network) legacy(service string) (ready, unready []string) {
	e, err := c.Client.CoreV1().Endpoints("default").Get(c.Context(), service, metav1.GetOptions{})
	if err != nil {
		return nil, nil
	}
	for _, s := range e.Subsets {
		for _, a := range s.Addresses {
			ready = append(ready, a.TargetRef.Name)
		}
		for _, a := range s.NotReadyAddresses {
			unready = append(unready, a.TargetRef.Name)
		}
	}
	return ready, unready
}

func (c network) awaitLegacy(service string, ready, unready []string) {
	c.Helper()
	c.Eventually("Endpoints "+service, func() bool {
		r, n := c.legacy(service)
		return slices.Equal(r, ready) && slices.Equal(n, unready)
	})
}

func TestEndpointSlice_FollowsAPodFromReadyToGone(t *testing.T) {
	t.Parallel()
	c := newNetwork(t)
	svc := c.service("web", nil)
	c.Eventually("a slice that says: nothing", func() bool {
		s := c.Slices("web")
		return len(s) == 1 && len(s[0].Endpoints) == 0
	})
	empty := c.Slices("web")[0]

	pod := c.backendPod(0, nil)
	c.awaitEndpoints("web", map[string]string{"web-0": "rs"})
	s := c.Slices("web")[0]
	require.Equal(t, empty.Name, s.Name, "the empty slice is used")
	require.True(t, metav1.IsControlledBy(&s, svc))
	require.Equal(t, "blue", s.Labels["team"])
	require.Equal(t, "endpointslice-controller.k8s.io", s.Labels[discoveryv1.LabelManagedBy])
	require.Equal(t, discoveryv1.AddressTypeIPv4, s.AddressType)
	require.Len(t, s.Ports, 1)
	require.Equal(t, "http", *s.Ports[0].Name)
	require.EqualValues(t, 8080, *s.Ports[0].Port)
	e := s.Endpoints[0]
	require.Equal(t, []string{"10.0.0.1"}, e.Addresses)
	require.Equal(t, "node-0", *e.NodeName)
	require.Equal(t, "east", *e.Zone)
	require.Equal(t, pod.UID, e.TargetRef.UID)
	trigger, err := time.Parse(time.RFC3339Nano, s.Annotations[corev1.EndpointsLastChangeTriggerTime])
	require.NoError(t, err)
	require.True(t, trigger.Equal(pod.Status.Conditions[0].LastTransitionTime.Time), "the time of the change")
	c.awaitLegacy("web", []string{"web-0"}, nil)

	pod = c.setReady(pod, false)
	c.awaitEndpoints("web", map[string]string{"web-0": ""})
	c.awaitLegacy("web", nil, []string{"web-0"})
	c.setReady(pod, true)
	c.awaitEndpoints("web", map[string]string{"web-0": "rs"})
	// The pod is on a node, so that it ends gracefully: it serves until it is deleted.
	require.NoError(t, c.Client.CoreV1().Pods("default").Delete(c.Context(), "web-0", metav1.DeleteOptions{}))
	c.awaitEndpoints("web", map[string]string{"web-0": "st"})
	c.awaitLegacy("web", nil, nil)
	require.NoError(t, c.Client.CoreV1().Pods("default").Delete(c.Context(), "web-0", *metav1.NewDeleteOptions(0)))
	c.awaitEndpoints("web", map[string]string{})
	require.Len(t, c.Slices("web"), 1)
}

func TestEndpointSlice_PublishesNotReadyAddresses(t *testing.T) {
	t.Parallel()
	c := newNetwork(t)
	c.service("web", func(s *corev1.Service) {
		s.Spec.PublishNotReadyAddresses = true
		s.Spec.ClusterIP = corev1.ClusterIPNone
	})
	pod := c.backendPod(0, func(p *corev1.Pod) { p.Spec.Hostname, p.Spec.Subdomain = "alpha", "web" })
	c.setReady(pod, false)
	c.awaitEndpoints("web", map[string]string{"web-0": "r"})
	s := c.Slices("web")[0]
	require.Equal(t, "alpha", *s.Endpoints[0].Hostname)
	require.Contains(t, s.Labels, corev1.IsHeadlessService)
	c.awaitLegacy("web", []string{"web-0"}, nil)
	legacy, err := c.Client.CoreV1().Endpoints("default").Get(c.Context(), "web", metav1.GetOptions{})
	require.NoError(t, err)
	require.Contains(t, legacy.Labels, corev1.IsHeadlessService)
	require.Equal(t, "alpha", legacy.Subsets[0].Addresses[0].Hostname)
}

func TestEndpointSlice_LeavesOutPodsThatCannotServe(t *testing.T) {
	t.Parallel()
	c := newNetwork(t)
	c.service("web", nil)
	ended := c.backendPod(0, nil)
	c.backendPod(1, func(p *corev1.Pod) { p.Labels["app"] = "other" })
	c.backendPod(2, func(p *corev1.Pod) { p.Spec.NodeName = "unknown" })
	relabelled := c.backendPod(3, nil)
	c.awaitEndpoints("web", map[string]string{"web-0": "rs", "web-3": "rs"})
	ended.Status.Phase = corev1.PodSucceeded
	_, err := c.Client.CoreV1().Pods("default").UpdateStatus(c.Context(), ended, metav1.UpdateOptions{})
	require.NoError(t, err)
	relabelled.Labels["app"] = "other"
	_, err = c.Client.CoreV1().Pods("default").Update(c.Context(), relabelled, metav1.UpdateOptions{})
	require.NoError(t, err)
	c.awaitEndpoints("web", map[string]string{})
}

func TestEndpointSlice_LeavesOutPodsWithALoopbackAddress(t *testing.T) {
	t.Parallel()
	c := newNetwork(t)
	c.service("web", nil)
	moved := c.backendPod(0, nil)
	c.awaitEndpoints("web", map[string]string{"web-0": "rs"})
	moved.Status.PodIP, moved.Status.PodIPs = "127.0.0.1", []corev1.PodIP{{IP: "127.0.0.1"}}
	_, err := c.Client.CoreV1().Pods("default").UpdateStatus(c.Context(), moved, metav1.UpdateOptions{})
	require.NoError(t, err)
	c.backendPod(1, nil)
	c.awaitEndpoints("web", map[string]string{"web-1": "rs"})
	c.awaitLegacy("web", []string{"web-1"}, nil)
	for _, reason := range []string{"FailedToUpdateEndpointSlices", "FailedToUpdateEndpoint"} {
		c.Eventually("an Event "+reason, func() bool {
			events, err := c.Client.CoreV1().Events("default").List(c.Context(), metav1.ListOptions{})
			require.NoError(t, err)
			return slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
				return e.Reason == reason && e.InvolvedObject.Name == "web" &&
					strings.Contains(e.Message, `default/web-0 has the address "127.0.0.1"`)
			})
		})
	}
}

func TestEndpointSlice_GroupsByPorts(t *testing.T) {
	t.Parallel()
	c := newNetwork(t)
	c.service("web", nil)
	c.backendPod(0, nil)
	c.backendPod(1, func(p *corev1.Pod) { p.Spec.Containers[0].Ports[0].ContainerPort = 9090 })
	c.awaitEndpoints("web", map[string]string{"web-0": "rs", "web-1": "rs"})
	ports := map[string]int32{}
	for _, s := range c.Slices("web") {
		ports[s.Endpoints[0].TargetRef.Name] = *s.Ports[0].Port
	}
	require.Equal(t, map[string]int32{"web-0": 8080, "web-1": 9090}, ports)
	c.awaitLegacy("web", []string{"web-0", "web-1"}, nil)
}

func TestEndpointSlice_HasHintsForTrafficDistribution(t *testing.T) {
	t.Parallel()
	c := newNetwork(t)
	c.service("web", func(s *corev1.Service) {
		s.Spec.TrafficDistribution = new(corev1.ServiceTrafficDistributionPreferSameNode)
	})
	c.backendPod(1, nil)
	c.awaitEndpoints("web", map[string]string{"web-1": "rs"})
	hints := c.Slices("web")[0].Endpoints[0].Hints
	require.Equal(t, []discoveryv1.ForNode{{Name: "node-1"}}, hints.ForNodes)
	require.Equal(t, []discoveryv1.ForZone{{Name: "west"}}, hints.ForZones)
}

func TestEndpointSlice_WritesOneSliceForOnePod(t *testing.T) {
	t.Parallel()
	c := newNetwork(t)
	const n = 250
	want := map[string]string{}
	for i := range n {
		c.backendPod(i, nil)
		want[fmt.Sprint("web-", i)] = "rs"
	}
	c.service("web", nil)
	c.awaitEndpoints("web", want)
	before := map[types.UID]string{}
	for _, s := range c.Slices("web") {
		require.LessOrEqual(t, len(s.Endpoints), 100)
		before[s.UID] = s.ResourceVersion
	}
	require.Len(t, before, 3)
	require.NoError(t, c.Client.CoreV1().Pods("default").Delete(c.Context(), "web-7", *metav1.NewDeleteOptions(0)))
	delete(want, "web-7")
	c.awaitEndpoints("web", want)
	require.Equal(t, 1, c.slicesChanged("web", before))
	// A new endpoint goes into a slice that has room.
	c.backendPod(n, nil)
	want[fmt.Sprint("web-", n)] = "rs"
	c.awaitEndpoints("web", want)
	require.Len(t, c.Slices("web"), 3)
	require.LessOrEqual(t, c.slicesChanged("web", before), 2)
}

func (c network) slicesChanged(service string, before map[types.UID]string) (n int) {
	for _, s := range c.Slices(service) {
		if before[s.UID] != s.ResourceVersion {
			n++
		}
	}
	return n
}

func TestEndpointSlice_LeavesServicesWithoutSelectorAlone(t *testing.T) {
	t.Parallel()
	c := newNetwork(t)
	c.service("manual", func(s *corev1.Service) { s.Spec.Selector = nil })
	mine := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "manual-1",
			Labels: map[string]string{discoveryv1.LabelServiceName: "manual"}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.1"}}},
	}
	_, err := c.Client.DiscoveryV1().EndpointSlices("default").Create(c.Context(), mine, metav1.CreateOptions{})
	require.NoError(t, err)
	c.service("web", nil)
	c.Eventually("the other's slice", func() bool { return len(c.Slices("web")) == 1 })
	require.Len(t, c.Slices("manual"), 1)
	_, err = c.Client.CoreV1().Endpoints("default").Get(c.Context(), "manual", metav1.GetOptions{})
	require.Error(t, err)
}

func TestEndpointSlice_IsDeletedWithItsService(t *testing.T) {
	t.Parallel()
	c := newNetwork(t)
	c.service("web", nil)
	c.backendPod(0, nil)
	c.awaitEndpoints("web", map[string]string{"web-0": "rs"})
	// A slice that another client changed or deleted is restored.
	s := c.Slices("web")[0]
	s.Endpoints = nil
	_, err := c.Client.DiscoveryV1().EndpointSlices("default").Update(c.Context(), &s, metav1.UpdateOptions{})
	require.NoError(t, err)
	c.awaitEndpoints("web", map[string]string{"web-0": "rs"})
	require.NoError(t, c.Client.DiscoveryV1().EndpointSlices("default").Delete(c.Context(), s.Name, metav1.DeleteOptions{}))
	c.Eventually("made anew", func() bool { s2 := c.Slices("web"); return len(s2) == 1 && s2[0].UID != s.UID })
	require.NoError(t, c.Client.CoreV1().Services("default").Delete(c.Context(), "web", metav1.DeleteOptions{}))
	c.Eventually("gone", func() bool {
		_, err := c.Client.CoreV1().Endpoints("default").Get(c.Context(), "web", metav1.GetOptions{})
		return err != nil && len(c.Slices("web")) == 0
	})
}

// TestEndpointSlice_EqualsTheModelWhenIdle creates, changes, relabels and deletes pods at random while other
// clients write slices too. It takes 400 steps, or COXSWAIN_WALK_STEPS.
func TestEndpointSlice_EqualsTheModelWhenIdle(t *testing.T) {
	t.Parallel()
	c := newNetwork(t)
	random := controllertest.NewRandom(t)
	c.service("web", nil)
	pods := map[string]*corev1.Pod{}
	model := map[string]string{}
	for i := range controllertest.WalkSteps(t, 400) {
		names := slices.Sorted(maps.Keys(pods))
		action := random.IntN(10)
		if len(names) == 0 || action < 4 && len(names) < 500 {
			pod := c.backendPod(i, nil)
			pods[pod.Name], model[pod.Name] = pod, "rs"
			continue
		}
		name := names[random.IntN(len(names))]
		pod := pods[name]
		switch {
		case action < 7:
			ready := model[name] == ""
			pods[name], model[name] = c.setReady(pod, ready), map[bool]string{true: "rs"}[ready]
		case action < 9:
			require.NoError(t, c.Client.CoreV1().Pods("default").Delete(c.Context(), name, *metav1.NewDeleteOptions(0)))
			delete(pods, name)
			delete(model, name)
		default:
			for _, s := range c.Slices("web") {
				if random.IntN(2) == 0 {
					// may be gone
					_ = c.Client.DiscoveryV1().EndpointSlices("default").Delete(c.Context(), s.Name, metav1.DeleteOptions{})
				}
			}
		}
	}
	c.awaitEndpoints("web", model)
	t.Logf("%d endpoints in %d slices", len(model), len(c.Slices("web")))
	total := 0
	for _, s := range c.Slices("web") {
		total += len(s.Endpoints)
	}
	require.Equal(t, len(model), total, "no endpoint twice")
	var ready, not []string
	for _, name := range slices.Sorted(maps.Keys(model)) {
		if model[name] == "rs" {
			ready = append(ready, name)
		} else {
			not = append(not, name)
		}
	}
	c.Eventually("Endpoints", func() bool {
		r, n := c.legacy("web")
		slices.Sort(r)
		slices.Sort(n)
		return slices.Equal(r, ready) && slices.Equal(n, not)
	})
}

func TestEndpointSlice_BehindADeploymentOnNodes(t *testing.T) {
	t.Parallel()
	c := network{controllertest.NewControlPlane(t)}
	c.service("web", func(s *corev1.Service) { s.Spec.Ports[0].TargetPort = intstr.FromInt32(8080) })
	c.Deploy("web", 30, nil)
	c.AwaitRollout("web")
	all := func() bool {
		found := c.endpointsOf("web")
		for _, conditions := range found {
			if conditions != "rs" {
				return false
			}
		}
		return len(found) == 30
	}
	c.Eventually("30 endpoints", all)
	c.EditDeployment("web", func(d *appsv1.Deployment) { controllertest.Image("two")(d) })
	c.AwaitRollout("web")
	c.Eventually("30 others", all)
}

func TestEndpointSlice_HoldsMaxEndpointsPerSlice(t *testing.T) {
	t.Parallel()
	settings := controllers.Settings{}
	settings.Endpoints.MaxPerSlice = 3
	c := controllertest.NewClockedWith(t, settings, "endpointslice", "endpointslice-mirroring-controller")
	c.CreateNode("n", nil)
	_, err := c.Client.CoreV1().Services("default").Create(c.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "web"},
			Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	for i := range 7 {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("web-%d", i),
			Labels: map[string]string{"app": "web"}}}
		pod.Spec.NodeName, pod.Spec.Containers = "n", []corev1.Container{{Name: "c", Image: "i"}}
		pod, err := c.Client.CoreV1().Pods("default").Create(c.Context(), pod, metav1.CreateOptions{})
		require.NoError(t, err)
		pod.Status.Phase, pod.Status.PodIP, pod.Status.PodIPs = corev1.PodRunning, fmt.Sprintf("10.0.0.%d", i+1), nil
		_, err = c.Client.CoreV1().Pods("default").UpdateStatus(c.Context(), pod, metav1.UpdateOptions{})
		require.NoError(t, err)
	}
	c.Reaches("seven in slices of three", func() bool {
		total := 0
		for _, s := range c.Slices("web") {
			require.LessOrEqual(t, len(s.Endpoints), 3)
			total += len(s.Endpoints)
		}
		return total == 7
	})
}

func TestEndpointSlice_CountsWhatItWrites(t *testing.T) {
	t.Parallel()
	c := network{controllertest.NewClockedWith(t, controllers.Settings{}, "endpointslice").Cluster}
	c.CreateNode("node-0", nil)
	c.CreateNode("node-1", nil)
	c.service("web", func(s *corev1.Service) {
		s.Spec.TrafficDistribution = new(corev1.ServiceTrafficDistributionPreferSameZone)
	})
	c.service("none", nil)
	for i := range 3 {
		c.backendPod(i, nil)
	}
	const prefix = "endpoint_slice_controller_"
	c.AwaitMetric(3, prefix+"endpoints_desired")
	c.AwaitMetric(2, prefix+"num_endpoint_slices")
	c.AwaitMetric(2, prefix+"desired_endpoint_slices")
	c.AwaitMetric(1, prefix+"services_count_by_traffic_distribution", "traffic_distribution", "PreferSameZone")
	c.AwaitMetric(2, prefix+"changes", "operation", "create")
	require.EqualValues(t, 3, seriestest.Sum(t, c.Metrics, prefix+"endpoints_added_per_sync"))
	require.NotZero(t, seriestest.Value(t, c.Metrics, prefix+"syncs", "result", "success"))
	require.NotZero(t, seriestest.Value(t, c.Metrics, prefix+"endpointslices_changed_per_sync",
		"topology", "Disabled", "traffic_distribution", "PreferSameZone"))
	require.NoError(t, c.Client.CoreV1().Pods("default").Delete(c.Context(), "web-0", *metav1.NewDeleteOptions(0)))
	c.AwaitMetric(2, prefix+"endpoints_desired")
	c.Eventually("the removed endpoint is counted", func() bool {
		return seriestest.Sum(t, c.Metrics, prefix+"endpoints_removed_per_sync") == 1
	})
	require.NoError(t, c.Client.CoreV1().Services("default").Delete(c.Context(), "web", metav1.DeleteOptions{}))
	c.AwaitMetric(1, prefix+"num_endpoint_slices")
	c.AwaitMetric(0, prefix+"endpoints_desired")
}
