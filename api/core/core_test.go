package core_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/api/kindtest"
)

const soundService = `
metadata: {name: web, namespace: default}
spec:
  type: NodePort
  clusterIP: 10.96.0.7
  clusterIPs: [10.96.0.7]
  selector: {app: web}
  ports:
  - {name: http, port: 80, targetPort: http, nodePort: 30080}
  - {name: dns, port: 53, protocol: UDP}
`

func TestService_ValidateRejects(t *testing.T) {
	t.Parallel()
	kindtest.Create(t, "Service", soundService, []kindtest.Case{
		{"type", []string{"type: NodePort", "type: Best"}, []string{"NotSupported spec.type"}},
		{"headless node port", []string{"clusterIP: 10.96.0.7\n  clusterIPs: [10.96.0.7]",
			"clusterIP: None\n  clusterIPs: [None]"}, []string{"Invalid spec.clusterIPs[0]"}},
		{"node port of a cluster IP", []string{"type: NodePort", "type: ClusterIP"},
			[]string{"Forbidden spec.ports[0].nodePort"}},
		{"no port name", []string{"name: dns,", ""}, []string{"Required spec.ports[1].name"}},
		{"same port name", []string{"name: dns,", "name: http,"}, []string{"Duplicate spec.ports[1].name"}},
		{"same port", []string{"port: 53, protocol: UDP", "port: 80"}, []string{"Duplicate spec.ports[1]"}},
		{"port range", []string{"port: 53", "port: 70000"},
			[]string{"Invalid spec.ports[1].port", "Invalid spec.ports[1].targetPort"}},
		{"protocol", []string{"protocol: UDP", "protocol: ICMP"}, []string{"NotSupported spec.ports[1].protocol"}},
		{"selector", []string{"{app: web}", "{app: w b}"}, []string{"Invalid spec.selector"}},
		{"affinity", []string{"spec:", "spec:\n  sessionAffinity: Often"},
			[]string{"NotSupported spec.sessionAffinity"}},
		{"addresses disagree", []string{"clusterIP: 10.96.0.7", "clusterIP: 10.96.0.8"},
			[]string{"Invalid spec.clusterIPs"}},
		{"bad address", []string{"clusterIP: 10.96.0.7\n  clusterIPs: [10.96.0.7]", "clusterIP: a\n  clusterIPs: [a]"},
			[]string{"Invalid spec.clusterIPs[0]"}},
		{"loopback", []string{"spec:", "spec:\n  externalIPs: [127.0.0.1]"}, []string{"Invalid spec.externalIPs[0]"}},
		{"external name without one", []string{"type: NodePort\n  clusterIP: 10.96.0.7\n  clusterIPs: [10.96.0.7]",
			"type: ExternalName", ", nodePort: 30080", ""}, []string{"Required spec.externalName"}},
		{"source ranges", []string{"spec:", "spec:\n  loadBalancerSourceRanges: [10.0.0.0/8]"},
			[]string{"Forbidden spec.LoadBalancerSourceRanges"}},
		{"health check port", []string{"spec:", "spec:\n  healthCheckNodePort: 3000"},
			[]string{"Invalid spec.healthCheckNodePort"}},
		{"no ports", []string{"  ports:\n  - {name: http, port: 80, targetPort: http, nodePort: 30080}\n  - " +
			"{name: dns, port: 53, protocol: UDP}", ""}, []string{"Required spec.ports"}},
	})
	kindtest.Update(t, "Service", soundService, []kindtest.Case{
		{"cluster IP", []string{"clusterIP: 10.96.0.7\n  clusterIPs: [10.96.0.7]",
			"clusterIP: 10.96.0.9\n  clusterIPs: [10.96.0.9]"}, []string{"Invalid spec.clusterIPs[0]"}},
		{"cluster IP left out", []string{"clusterIP: 10.96.0.7\n  clusterIPs: [10.96.0.7]\n  ", ""}, nil},
		{"selector", []string{"app: web", "app: other"}, nil},
		{"to external name", []string{"type: NodePort", "type: ExternalName\n  externalName: a.b"}, nil},
	})
}

const balancedService = `
metadata: {name: web, namespace: default}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.7
  clusterIPs: [10.96.0.7]
  ipFamilies: [IPv4]
  ipFamilyPolicy: SingleStack
  externalTrafficPolicy: Local
  internalTrafficPolicy: Cluster
  allocateLoadBalancerNodePorts: true
  loadBalancerClass: example.com/lb
  healthCheckNodePort: 30000
  ports:
  - {name: http, port: 80, nodePort: 30080}
`

func TestService_UpdateRejectsLoadBalancerChanges(t *testing.T) {
	t.Parallel()
	const family, ip = "ipFamilies: [IPv4]", "clusterIP: 10.96.0.7\n  clusterIPs: [10.96.0.7]"
	kindtest.Create(t, "Service", balancedService, nil)
	kindtest.Update(t, "Service", balancedService, []kindtest.Case{
		{"nothing", nil, nil},
		{"health check port", []string{"30000", "30001"}, []string{"Forbidden spec.healthCheckNodePort"}},
		{"health check port left out", []string{"  healthCheckNodePort: 30000\n", ""}, nil},
		{"no health check", []string{"Policy: Local", "Policy: Cluster", "  healthCheckNodePort: 30000\n", ""}, nil},
		{"class", []string{"example.com/lb", "example.com/other"}, []string{"Invalid spec.loadBalancerClass"}},
		{"no class", []string{"  loadBalancerClass: example.com/lb\n", ""}, []string{"Invalid spec.loadBalancerClass"}},
		{"another type", []string{"type: LoadBalancer", "type: NodePort", "  loadBalancerClass: example.com/lb\n", "",
			"  allocateLoadBalancerNodePorts: true\n", "", "  healthCheckNodePort: 30000\n", ""}, nil},
		{"family", []string{family, "ipFamilies: [IPv6]", ip, "clusterIP: fd00::7\n  clusterIPs: ['fd00::7']"},
			[]string{"Invalid spec.clusterIPs[0]", "Invalid spec.ipFamilies[0]"}},
		{"second family", []string{family, "ipFamilies: [IPv4, IPv6]", "SingleStack", "PreferDualStack"}, nil},
	})
}

func TestService_UpdateKeepsAllocatedValues(t *testing.T) {
	t.Parallel()
	r := kindtest.Of(t, "Service")
	old := kindtest.Decode(t, r, soundService).(*corev1.Service)
	s := kindtest.Decode(t, r, "spec: {type: NodePort, ports: [{name: http, port: 80}]}").(*corev1.Service)
	r.PrepareUpdate(s, old)
	require.Equal(t, []string{"10.96.0.7"}, s.Spec.ClusterIPs)
	require.EqualValues(t, 30080, s.Spec.Ports[0].NodePort)

	s = kindtest.Decode(t, r, strings.Replace(soundService, "type: NodePort", "type: ClusterIP", 1)).(*corev1.Service)
	r.PrepareUpdate(s, old)
	require.Zero(t, s.Spec.Ports[0].NodePort, "a cluster IP service has no node ports")
}

func TestService_NodePortsFollowPortNames(t *testing.T) {
	t.Parallel()
	r := kindtest.Of(t, "Service")
	old := kindtest.Decode(t, r,
		"spec: {type: NodePort, ports: [{name: a, port: 80, nodePort: 30080}, {name: b, port: 81, "+
			"nodePort: 30081}]}").(*corev1.Service)
	for ports, want := range map[string][]int32{
		"[{name: a, port: 8080}, {name: b, port: 81}]":                  {30080, 30081},
		"[{name: b, port: 80}]":                                         {30081},
		"[{name: c, port: 80}, {name: d, port: 82}]":                    {0, 0},
		"[{name: a, port: 80}, {name: c, port: 83, nodePort: 30080}]":   {0, 30080},
		"[{name: a, port: 80, nodePort: 30090}, {name: b, port: 8081}]": {30090, 30081},
	} {
		s := kindtest.Decode(t, r, "spec: {type: NodePort, ports: "+ports+"}").(*corev1.Service)
		r.PrepareUpdate(s, old)
		var got []int32
		for _, p := range s.Spec.Ports {
			got = append(got, p.NodePort)
		}
		require.Equal(t, want, got, ports)
	}
}

func TestService_TypeChangeDropsUnusedFields(t *testing.T) {
	t.Parallel()
	const ports, ips = "ports: [{name: http, port: 80, protocol: TCP, targetPort: 80, nodePort: 30080}], ",
		"clusterIP: 10.96.0.7, clusterIPs: [10.96.0.7], "
	const families = "ipFamilies: [IPv4], ipFamilyPolicy: SingleStack, "
	const balancer = "externalTrafficPolicy: Local, healthCheckNodePort: 30081, allocateLoadBalancerNodePorts: " +
		"true, loadBalancerClass: example.com/a, "
	const common = "sessionAffinity: None, internalTrafficPolicy: Cluster, externalName: a.b, "
	const status = "status: {loadBalancer: {ingress: [{ip: 192.0.2.1, ipMode: VIP}]}}"
	for name, c := range map[string]struct {
		old, new, want string // specs
		status         string // after the update
	}{
		"balancer to external name": {
			"type: LoadBalancer, " + common + ports + ips + families + balancer, "type: ExternalName, " +
				common + ports + ips + families + balancer,
			"type: ExternalName, " + common + strings.Replace(ports, ", nodePort: 30080", "", 1), ""},
		"balancer to cluster IP": {
			"type: LoadBalancer, " + common + ports + ips + families + balancer, "type: ClusterIP, " +
				common + ports + ips + families + balancer,
			"type: ClusterIP, " + common + ips + families + strings.Replace(ports, ", nodePort: 30080", "", 1), ""},
		"balancer to node port": {
			"type: LoadBalancer, " + common + ports + ips + families + balancer, "type: NodePort, " +
				common + ports + ips + families + balancer,
			"type: NodePort, " + common + ports + ips + families + "externalTrafficPolicy: Local, ", ""},
		"node port to external name": {
			"type: NodePort, externalTrafficPolicy: Cluster, " + common + ports + ips + families,
			"type: ExternalName, externalTrafficPolicy: Cluster, " + common + ports + ips + families,
			"type: ExternalName, " + common + strings.Replace(ports, ", nodePort: 30080", "", 1), status},
		"fields that change as well are kept": {
			"type: LoadBalancer, " + common + ports + ips + families + balancer,
			"type: ExternalName, " + common + "ports: [{name: http, port: 80, protocol: TCP, targetPort: 80, " +
				"nodePort: 30085}], clusterIP: 10.96.0.8, " +
				"clusterIPs: [10.96.0.8], ipFamilies: [IPv6], ipFamilyPolicy: PreferDualStack, " +
				"externalTrafficPolicy: Cluster, healthCheckNodePort: 30086, " +
				"allocateLoadBalancerNodePorts: false, loadBalancerClass: example.com/b",
			"type: ExternalName, " + common + "ports: [{name: http, port: 80, protocol: TCP, targetPort: 80, " +
				"nodePort: 30085}], clusterIP: 10.96.0.8, " +
				"clusterIPs: [10.96.0.8], ipFamilies: [IPv6], ipFamilyPolicy: PreferDualStack, " +
				"externalTrafficPolicy: Cluster, healthCheckNodePort: 30086, " +
				"allocateLoadBalancerNodePorts: false, loadBalancerClass: example.com/b", ""},
	} {
		r := kindtest.Of(t, "Service")
		old := kindtest.Decode(t, r, "spec: {"+c.old+"}\n"+status).(*corev1.Service)
		s := kindtest.Decode(t, r, "spec: {"+c.new+"}\n"+status).(*corev1.Service)
		r.PrepareUpdate(s, old)
		require.Equal(t, kindtest.Decode(t, r, "spec: {"+c.want+"}\n"+c.status), s, name)
	}
}

func TestService_Cells(t *testing.T) {
	t.Parallel()
	r := kindtest.Of(t, "Service")
	cells := r.Cells(kindtest.Decode(t, r, soundService))
	require.Equal(t, []any{"web", "NodePort", "10.96.0.7", "<none>", "80:30080/TCP,53/UDP", "<unknown>", "app=web"},
		cells)
	cells = r.Cells(kindtest.Decode(t, r, "spec: {type: LoadBalancer}"))
	require.Equal(t, "<pending>", cells[3])
}

func TestConfigMapAndSecret_ValidateRejects(t *testing.T) {
	t.Parallel()
	const cm = "metadata: {name: a}\nimmutable: true\ndata: {a: b}\nbinaryData: {c: AAAA}\n"
	kindtest.Create(t, "ConfigMap", cm, []kindtest.Case{
		{"key", []string{"a: b", "'a/b': b"}, []string{"Invalid data[a/b]"}},
		{"key twice", []string{"{c: AAAA}", "{a: AAAA}"}, []string{"Invalid data[a]"}},
	})
	kindtest.Update(t, "ConfigMap", cm, []kindtest.Case{
		{"data", []string{"a: b", "a: c"}, []string{"Forbidden data"}},
		{"binary data", []string{"AAAA", "BBBB"}, []string{"Forbidden binaryData"}},
		{"thawed", []string{"immutable: true", "immutable: false"}, []string{"Forbidden immutable"}},
		{"label", []string{"{name: a}", "{name: a, labels: {x: y}}"}, nil},
	})
	const secret = "metadata: {name: a}\ntype: kubernetes.io/tls\nstringData: {tls.crt: a, tls.key: b}\n"
	kindtest.Create(t, "Secret", secret, []kindtest.Case{
		{"key missing", []string{", tls.key: b", ""}, []string{"Required data[tls.key]"}},
		{"docker config", []string{"kubernetes.io/tls", "kubernetes.io/dockerconfigjson"},
			[]string{"Required data[.dockerconfigjson]"}},
		{"broken docker config", []string{"kubernetes.io/tls", "kubernetes.io/dockerconfigjson", "tls.crt: a",
			".dockerconfigjson: a"}, []string{"Invalid data[.dockerconfigjson]"}},
		{"basic auth", []string{"kubernetes.io/tls", "kubernetes.io/basic-auth"},
			[]string{"Required data[username]", "Required data[password]"}},
		{"ssh", []string{"kubernetes.io/tls", "kubernetes.io/ssh-auth"}, []string{"Required data[ssh-privatekey]"}},
		{"token without account", []string{"kubernetes.io/tls", "kubernetes.io/service-account-token"},
			[]string{"Required metadata.annotations[kubernetes.io/service-account.name]"}},
	})
	kindtest.Update(t, "Secret", secret,
		[]kindtest.Case{{"type", []string{"kubernetes.io/tls", "Opaque"}, []string{"Invalid type"}}})
}

func TestSecret_DefaultMergesStringData(t *testing.T) {
	t.Parallel()
	s := kindtest.Decode(t, kindtest.Of(t, "Secret"), "data: {a: YQ==, b: Yg==}\nstringData: {b: x}").(*corev1.Secret)
	require.Equal(t, map[string][]byte{"a": []byte("a"), "b": []byte("x")}, s.Data)
	require.Nil(t, s.StringData)
	require.Equal(t, corev1.SecretTypeOpaque, s.Type)
}

func TestNamespace_BeginsActiveWithItsLabelAndFinalizer(t *testing.T) {
	t.Parallel()
	r := kindtest.Of(t, "Namespace")
	ns := kindtest.Decode(t, r, "metadata: {name: a}").(*corev1.Namespace)
	r.PrepareCreate(ns)
	r.Status.Reset(ns)
	require.Equal(t, "a", ns.Labels["kubernetes.io/metadata.name"])
	require.Equal(t, []corev1.FinalizerName{"kubernetes"}, ns.Spec.Finalizers)
	require.Equal(t, corev1.NamespaceActive, ns.Status.Phase)
	require.True(t, r.HasFinalizers(ns))

	old := ns.DeepCopy()
	ns.Spec.Finalizers = nil
	r.PrepareUpdate(ns, old)
	require.Equal(t, old.Spec.Finalizers, ns.Spec.Finalizers, "only the finalize subresource may take them away")
	r.Subresource("finalize").Copy(old, &corev1.Namespace{})
	require.False(t, r.HasFinalizers(old))
}

func TestNode_ValidateRejects(t *testing.T) {
	t.Parallel()
	const node = `
metadata: {name: node-1, labels: {node-role.kubernetes.io/worker: ""}}
spec:
  podCIDR: 10.0.0.0/24
  providerID: a
  taints:
  - {key: a, value: b, effect: NoSchedule}
status:
  capacity: {cpu: 4}
  conditions: [{type: Ready, status: "True"}]
  nodeInfo: {kubeletVersion: v1.2.3}
`
	kindtest.Create(t, "Node", node, []kindtest.Case{
		{"taint key", []string{"key: a,", "key: a b,"}, []string{"Invalid metadata.taints[0].key"}},
		{"taint effect", []string{"NoSchedule", "Never"}, []string{"NotSupported metadata.taints[0].effect"}},
		{"taint without effect", []string{", effect: NoSchedule", ""}, []string{"Required metadata.taints[0].effect"}},
		{"taint twice", []string{"taints:", "taints:\n  - {key: a, effect: NoSchedule}"},
			[]string{"Duplicate metadata.taints[1]"}},
		{"pod network", []string{"10.0.0.0/24", "ten"}, []string{"Invalid spec.podCIDRs[0]"}},
		{"capacity", []string{"{cpu: 4}", "{cpu: -4}"},
			[]string{"Invalid status.capacity.cpu", "Invalid status.allocatable.cpu"}},
	})
	kindtest.Update(t, "Node", node, []kindtest.Case{
		{"pod network", []string{"10.0.0.0/24", "10.1.0.0/24"}, []string{"Forbidden spec.podCIDRs"}},
		{"provider", []string{"providerID: a", "providerID: b"}, []string{"Forbidden spec.providerID"}},
		{"cordon", []string{"spec:", "spec:\n  unschedulable: true"}, nil},
	})
	r := kindtest.Of(t, "Node")
	require.Equal(t, []any{"node-1", "Ready,SchedulingDisabled", "worker", "<unknown>", "v1.2.3", "<none>"},
		r.Cells(kindtest.Decode(t, r, strings.Replace(node, "spec:", "spec:\n  unschedulable: true", 1)))[:6])
}

func TestEvent_ValidateRejects(t *testing.T) {
	t.Parallel()
	const event = `
metadata: {name: e, namespace: default}
involvedObject: {kind: Pod, name: p, namespace: default}
reason: Started
message: Started container
type: Normal
eventTime: "2026-01-02T03:04:05.000000Z"
reportingComponent: a.io/kubelet
reportingInstance: n1
action: Start
series: {count: 3, lastObservedTime: "2026-01-02T03:04:05.000000Z"}
`
	kindtest.Create(t, "Event", event, []kindtest.Case{
		{"other namespace", []string{"name: p, namespace: default", "name: p, namespace: other", "eventTime",
			"lastTimestamp", ".000000Z", "Z"}, []string{"Invalid involvedObject.namespace"}},
		{"no reason", []string{"reason: Started\n", ""}, []string{"Required reason"}},
		{"no action", []string{"action: Start\n", ""}, []string{"Required action"}},
		{"no controller", []string{"reportingComponent: a.io/kubelet\n", ""}, []string{"Required reportingController"}},
		{"core/v1 is lax about types and series", []string{"type: Normal", "type: Odd", "count: 3", "count: 1"}, nil},
	})
	renamed := strings.NewReplacer("involvedObject", "regarding", "message", "note", "reportingComponent",
		"reportingController").Replace(event)
	const strict = "events.k8s.io/v1 Event"
	kindtest.Create(t, strict, renamed, []kindtest.Case{
		{"type", []string{"type: Normal", "type: Odd"}, []string{"Invalid type"}},
		{"series of one", []string{"count: 3", "count: 1"}, []string{"Invalid series.count"}},
		{"no time", []string{`eventTime: "2026-01-02T03:04:05.000000Z"`, "deprecatedCount: 3"},
			[]string{"Required eventTime", "Invalid count"}},
		{"old source", []string{"action:", "deprecatedSource: {component: kubelet}\naction:"},
			[]string{"Invalid source"}},
	})
	kindtest.Update(t, strict, renamed, []kindtest.Case{
		{"series goes on", []string{"count: 3", "count: 4"}, nil},
		{"series of one", []string{"count: 3", "count: 1"}, []string{"Invalid series.count"}},
		{"all else is fixed", []string{"note: Started", "note: Stopped", "type: Normal", "type: Warning"},
			[]string{"Invalid message", "Invalid type"}},
	})
}

func TestReplicationController_DefaultsSelectorAndLabelsFromItsTemplate(t *testing.T) {
	t.Parallel()
	rc := kindtest.Decode(t, kindtest.Of(t, "ReplicationController"),
		"spec: {template: {metadata: {labels: {a: b}}, spec: "+
			"{containers: [{name: a, image: b}]}}}").(*corev1.ReplicationController)
	require.Equal(t, map[string]string{"a": "b"}, rc.Spec.Selector)
	require.Equal(t, map[string]string{"a": "b"}, rc.Labels)
}
