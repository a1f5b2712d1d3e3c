package backend

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func podWithPorts() *corev1.Pod {
	always := corev1.ContainerRestartPolicyAlways
	port := func(name string, number int32, protocol corev1.Protocol) corev1.ContainerPort {
		return corev1.ContainerPort{Name: name, ContainerPort: number, Protocol: protocol}
	}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "p-1"},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{
				{Name: "a", Ports: []corev1.ContainerPort{
					port("web", 8080, corev1.ProtocolTCP), port("dns", 53, corev1.ProtocolUDP)}},
				{Name: "b", Ports: []corev1.ContainerPort{port("bare", 9000, "")}},
			},
			InitContainers: []corev1.Container{
				{Name: "sidecar", RestartPolicy: &always, Ports: []corev1.ContainerPort{
					port("proxy", 15000, corev1.ProtocolTCP)}},
				{Name: "init", Ports: []corev1.ContainerPort{port("setup", 1, corev1.ProtocolTCP)}},
			},
		}}
}

func TestPort_FindsTheNumberOfAPodsPort(t *testing.T) {
	t.Parallel()
	named := func(protocol corev1.Protocol, target string) corev1.ServicePort {
		return corev1.ServicePort{Protocol: protocol, TargetPort: intstr.FromString(target)}
	}
	for name, c := range map[string]struct {
		port corev1.ServicePort
		want int32 // 0: the pod has none
	}{
		"without a target":       {corev1.ServicePort{Port: 80}, 80},
		"a number":               {corev1.ServicePort{Port: 80, TargetPort: intstr.FromInt32(81)}, 81},
		"a name":                 {named(corev1.ProtocolTCP, "web"), 8080},
		"a name of UDP":          {named(corev1.ProtocolUDP, "dns"), 53},
		"a name of another kind": {named(corev1.ProtocolTCP, "dns"), 0},
		"a name without a protocol, which is TCP": {named(corev1.ProtocolTCP, "bare"), 9000},
		"a name without a protocol for UDP":       {named(corev1.ProtocolUDP, "bare"), 0},
		"a sidecar's":                             {named(corev1.ProtocolTCP, "proxy"), 15000},
		"an init container's":                     {named(corev1.ProtocolTCP, "setup"), 0},
		"an unknown name":                         {named(corev1.ProtocolTCP, "none"), 0},
	} {
		number, err := Port(podWithPorts(), &c.port)
		require.Equal(t, c.want == 0, err != nil, name)
		require.Equal(t, c.want, number, name)
	}
}

func TestMatters_ReportsChangesOfEndpoints(t *testing.T) {
	t.Parallel()
	old := podWithPorts()
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		want   bool
	}{
		"nothing":       {func(*corev1.Pod) {}, false},
		"an annotation": {func(p *corev1.Pod) { p.Annotations = map[string]string{"a": "b"} }, false},
		"another condition": {func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled}}
		}, false},
		"it runs":            {func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }, false},
		"it is another":      {func(p *corev1.Pod) { p.UID = "p-2" }, true},
		"labels":             {func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} }, true},
		"it is deleted":      {func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) }, true},
		"it has ended":       {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, true},
		"an address":         {func(p *corev1.Pod) { p.Status.PodIP = "10.0.0.1" }, true},
		"a second address":   {func(p *corev1.Pod) { p.Status.PodIPs = []corev1.PodIP{{IP: "fd00::1"}} }, true},
		"a Node":             {func(p *corev1.Pod) { p.Spec.NodeName = "n" }, true},
		"a container's port": {func(p *corev1.Pod) { p.Spec.Containers[0].Ports[0].ContainerPort++ }, true},
		"it is ready": {func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		}, true},
	} {
		pod := old.DeepCopy()
		c.change(pod)
		require.Equal(t, c.want, matters(old, pod), name)
		require.Equal(t, c.want, matters(pod, old), name)
	}
}

func TestChosenAndServes_Decide(t *testing.T) {
	t.Parallel()
	selector := map[string]string{"app": "web"}
	require.True(t, Chosen(&corev1.Service{Spec: corev1.ServiceSpec{Selector: selector}}))
	require.False(t, Chosen(&corev1.Service{}), "its author keeps the endpoints")
	require.False(t, Chosen(&corev1.Service{Spec: corev1.ServiceSpec{Selector: selector,
		Type: corev1.ServiceTypeExternalName}}))
	require.True(t, Headless(&corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: "None"}}))
	require.False(t, Headless(&corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1"}}))
	require.False(t, Serves(&corev1.Pod{}))
	require.True(t, Serves(&corev1.Pod{Status: corev1.PodStatus{PodIP: "10.0.0.1"}}))
	require.True(t, Serves(&corev1.Pod{Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}}}}))
	require.False(t, Serves(&corev1.Pod{Status: corev1.PodStatus{PodIP: "10.0.0.1", Phase: corev1.PodFailed}}))
	named := &corev1.Pod{Spec: corev1.PodSpec{Hostname: "a", Subdomain: "web"}}
	require.Equal(t, "a", Hostname(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}}, named))
	require.Empty(t, Hostname(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "other"}}, named))
}

func TestTriggers_ReturnTheEarliestNewChange(t *testing.T) {
	t.Parallel()
	start := time.Unix(1_800_000_000, 0)
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web",
		CreationTimestamp: metav1.NewTime(start)}}
	pod := func(name string, after time.Duration) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady,
			LastTransitionTime: metav1.NewTime(start.Add(after))}}
		return p
	}
	var triggers Triggers
	require.Equal(t, start, triggers.Since(svc, nil), "its creation")
	require.Zero(t, triggers.Since(svc, nil))
	require.Equal(t, start.Add(1), triggers.Since(svc, []*corev1.Pod{pod("b", 2), pod("a", 1), {}}))
	require.Zero(t, triggers.Since(svc, []*corev1.Pod{pod("a", 1), pod("b", 2)}))
	require.Equal(t, start.Add(3), triggers.Since(svc, []*corev1.Pod{pod("a", 3), pod("b", 2)}), "one has changed")
	require.Zero(t, triggers.Since(svc, []*corev1.Pod{pod("b", 2)}), "one has left")
	triggers.Forget("default/web")
	require.Equal(t, start, triggers.Since(svc, nil))
}

func TestAddresses_LeaveOutUnreachableOnes(t *testing.T) {
	t.Parallel()
	pod := func(ips ...string) *corev1.Pod {
		p := &corev1.Pod{}
		for _, ip := range ips {
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
		}
		return p
	}
	both := pod("10.0.0.1", "fd00::1")
	require.Equal(t, []string{"10.0.0.1"}, Addresses(both, false))
	require.Equal(t, []string{"fd00::1"}, Addresses(both, true))
	require.Equal(t, []string{"10.0.0.1"}, Addresses(&corev1.Pod{Status: corev1.PodStatus{PodIP: "10.0.0.1"}}, false))
	require.Empty(t, Addresses(&corev1.Pod{}, false))
	for _, ip := range []string{"127.0.0.1", "::1", "0.0.0.0", "::", "169.254.169.254", "fe80::1", "224.0.0.1", "ff02::1",
		"fd00::1%eth0", "::ffff:127.0.0.1", "web"} {
		require.Empty(t, Addresses(pod(ip), false), ip)
		require.Empty(t, Addresses(pod(ip), true), ip)
	}
}
