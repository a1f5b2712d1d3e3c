//go:build e2e && linux

package network

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Services should serve a basic endpoint from pods
func TestServices_ServiceEndpoints(t *testing.T) {
	s := share(t)
	s.pause("client")
	s.service("endpoint", "endpoint", nil)
	s.silent("client", "http://endpoint/hostname")
	s.server("pod1", "endpoint")
	s.answers("client", "http://endpoint/hostname", "pod1")
	s.server("pod2", "endpoint")
	s.answers("client", "http://endpoint/hostname", "pod1", "pod2")
	s.delete("pod1")
	s.answers("client", "http://endpoint/hostname", "pod2")
	s.delete("pod2")
	s.silent("client", "http://endpoint/hostname")
}

// Services should serve multiport endpoints from pods
func TestServices_ServiceMultiport(t *testing.T) {
	s := share(t)
	s.pause("client")
	s.service("multi", "", func(spec *corev1.ServiceSpec) {
		spec.Selector = map[string]string{"multi": "true"}
		spec.Ports = []corev1.ServicePort{{Name: "portname1", Port: 80, TargetPort: intstr.FromString("portname1")},
			{Name: "portname2", Port: 81, TargetPort: intstr.FromString("portname2")}}
	})
	for i := 1; i <= 2; i++ {
		name, port := fmt.Sprint("pod", i), int32(100*i)
		spec := program("serve", "-http", fmt.Sprint(":", port))
		spec.Containers[0].ReadinessProbe = readyAt(int(port))
		spec.Containers[0].Ports = []corev1.ContainerPort{{Name: fmt.Sprint("portname", i), ContainerPort: port}}
		s.run(name, "multi", spec)
		_, err := s.kubectl("-n", s.name, "label", "pod", name, "multi=true")
		require.NoError(t, err)
	}
	s.answers("client", "http://multi:80/hostname", "pod1")
	s.answers("client", "http://multi:81/hostname", "pod2")
	s.delete("pod1")
	s.silent("client", "http://multi:80/hostname")
	s.answers("client", "http://multi:81/hostname", "pod2")
}

// Services should serve endpoints on same port and different protocols
func TestServices_ServiceSamePortProtocols(t *testing.T) {
	s := share(t)
	s.pause("client")
	s.server("server", "both")
	both := []corev1.ServicePort{
		{Name: "tcp", Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt(8080)},
		{Name: "udp", Port: 80, Protocol: corev1.ProtocolUDP, TargetPort: intstr.FromInt(8081)},
	}
	s.service("both", "both", func(spec *corev1.ServiceSpec) { spec.Ports = both })
	s.answers("client", "http://both/hostname", "server")
	s.answers("client", "udp://both:80/hostname", "server")
	s.change("both", func(spec *corev1.ServiceSpec) { spec.Ports = both[:1] })
	s.silent("client", "udp://both:80/hostname")
	s.answers("client", "http://both/hostname", "server")
}

// Services should be able to create a functioning NodePort service
func TestServices_NodePortService(t *testing.T) {
	s := share(t)
	s.pause("client")
	s.server("pod1", "nodeport")
	s.server("pod2", "nodeport")
	s.reachableEverywhere(s.service("nodeport", "nodeport", nodePort), "pod1", "pod2")
}

func nodePort(spec *corev1.ServiceSpec) { spec.Type = corev1.ServiceTypeNodePort }

// reachableEverywhere checks a Service by name, by cluster IP, and at the node port of every machine, from pods and
// from machines.
func (s *space) reachableEverywhere(service *corev1.Service, pods ...string) {
	s.Helper()
	s.answers("client", "http://"+service.Name+"/hostname", pods...)
	s.answers("client", "http://"+service.Spec.ClusterIP+"/hostname", pods...)
	if service.Spec.Type != corev1.ServiceTypeNodePort {
		return
	}
	for i, m := range s.machines {
		url := fmt.Sprintf("http://%s:%d/hostname", m.address, service.Spec.Ports[0].NodePort)
		s.answers("client", url, pods...)
		s.answersOn(s.machines[(i+1)%len(s.machines)], url, pods...)
	}
}

const external = "outside.example.com"

// Services should be able to change the type from ExternalName to ClusterIP
func TestServices_ExternalNameToClusterIP(t *testing.T) {
	fromExternalName(t, nil)
}

// Services should be able to change the type from ExternalName to NodePort
func TestServices_ExternalNameToNodePort(t *testing.T) {
	fromExternalName(t, nodePort)
}

func fromExternalName(t *testing.T, how func(*corev1.ServiceSpec)) {
	t.Helper()
	s := share(t)
	s.pause("client")
	s.server("pod1", "web")
	s.service("web", "", func(spec *corev1.ServiceSpec) {
		*spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: external}
	})
	s.digs("client", "cname", "web", external+".")
	s.reachableEverywhere(s.change("web", func(spec *corev1.ServiceSpec) {
		*spec = corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, Selector: map[string]string{"app": "web"},
			Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt(8080)}}}
		if how != nil {
			how(spec)
		}
	}), "pod1")
}

// Services should be able to change the type from ClusterIP to ExternalName
func TestServices_ClusterIPToExternalName(t *testing.T) {
	toExternalName(t, nil)
}

// Services should be able to change the type from NodePort to ExternalName
func TestServices_NodePortToExternalName(t *testing.T) {
	toExternalName(t, nodePort)
}

func toExternalName(t *testing.T, how func(*corev1.ServiceSpec)) {
	t.Helper()
	s := share(t)
	s.pause("client")
	s.server("pod1", "web")
	before := s.service("web", "web", how)
	s.reachableEverywhere(before, "pod1")
	s.change("web", func(spec *corev1.ServiceSpec) {
		*spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: external}
	})
	s.digs("client", "cname", "web", external+".")
	s.silent("client", "http://"+before.Spec.ClusterIP+"/hostname")
}

// Services should have session affinity work for service with type clusterIP
func TestServices_ClusterIPAffinityClientIP(t *testing.T) {
	s := affine(t)
	service := s.service("web", "web", clientIP)
	s.same("http://" + service.Spec.ClusterIP + "/hostname")
}

// Services should be able to switch session affinity for service with type clusterIP
func TestServices_ClusterIPAffinityNone(t *testing.T) {
	s := affine(t)
	service := s.service("web", "web", nil)
	s.switchAffinity("http://" + service.Spec.ClusterIP + "/hostname")
}

// Services should have session affinity work for NodePort service
func TestServices_NodePortAffinityClientIP(t *testing.T) {
	s := affine(t)
	service := s.service("web", "web", func(spec *corev1.ServiceSpec) { nodePort(spec); clientIP(spec) })
	s.same(fmt.Sprintf("http://%s:%d/hostname", s.machines[0].address, service.Spec.Ports[0].NodePort))
}

// Services should be able to switch session affinity for NodePort service
func TestServices_NodePortAffinityNone(t *testing.T) {
	s := affine(t)
	service := s.service("web", "web", nodePort)
	s.switchAffinity(fmt.Sprintf("http://%s:%d/hostname", s.machines[0].address, service.Spec.Ports[0].NodePort))
}

// affine creates three pods that a Service can choose from.
func affine(t *testing.T) *space {
	t.Helper()
	s := share(t)
	s.pause("client")
	for _, name := range three {
		s.create(name, "web", program("serve"))
	}
	for _, name := range three {
		s.ready(name)
	}
	return s
}

var three = []string{"pod1", "pod2", "pod3"}

func clientIP(spec *corev1.ServiceSpec) { spec.SessionAffinity = corev1.ServiceAffinityClientIP }

func (s *space) switchAffinity(url string) {
	s.Helper()
	s.answers("client", url, three...)
	s.change("web", clientIP)
	s.same(url)
	s.change("web", func(spec *corev1.ServiceSpec) {
		spec.SessionAffinity, spec.SessionAffinityConfig = corev1.ServiceAffinityNone, nil
	})
	s.answers("client", url, three...)
}

// same waits until all of the client's answers come from one pod.
func (s *space) same(url string) {
	s.Helper()
	s.eventually("one pod gives all answers", func() error {
		lines, err := s.in("client", "get", "-n", "40", url)
		if err != nil {
			return err
		}
		return just(lines, nil, lines[:1])
	})
}

// EndpointSlice should support a Service with multiple endpoint IPs specified in multiple EndpointSlices
func TestEndpointSlice_MultiIP(t *testing.T) {
	s := share(t)
	s.pause("client")
	pod1, pod2 := s.server("pod1", "server"), s.server("pod2", "server")
	s.service("custom", "", nil)
	s.slice("first", "http", 8080, pod1.Status.PodIP)
	s.slice("second", "http", 8080, pod2.Status.PodIP)
	s.answers("client", "http://custom/hostname", "pod1", "pod2")
}

// EndpointSlice should support a Service with multiple ports specified in multiple EndpointSlices
func TestEndpointSlice_MultiPort(t *testing.T) {
	s := share(t)
	s.pause("client")
	pod1 := s.server("pod1", "server")
	spec := program("serve", "-http", ":9090")
	spec.Containers[0].ReadinessProbe = readyAt(9090)
	pod2 := s.run("pod2", "server", spec)
	s.service("custom", "", func(spec *corev1.ServiceSpec) {
		spec.Ports = []corev1.ServicePort{{Name: "http", Port: 80}, {Name: "other", Port: 81}}
	})
	s.slice("first", "http", 8080, pod1.Status.PodIP)
	s.slice("second", "other", 9090, pod2.Status.PodIP)
	s.answers("client", "http://custom:80/hostname", "pod1")
	s.answers("client", "http://custom:81/hostname", "pod2")
}

// slice creates an EndpointSlice of the Service custom, as users with endpoints of their own do.
func (s *space) slice(name, portName string, port int32, addresses ...string) {
	s.Helper()
	tcp := corev1.ProtocolTCP
	_, err := s.client.DiscoveryV1().EndpointSlices(s.name).Create(s.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "custom"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &portName, Port: &port, Protocol: &tcp}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: addresses}},
	}, metav1.CreateOptions{})
	require.NoError(s, err)
}

func (s *space) delete(pod string) {
	s.Helper()
	require.NoError(s, s.client.CoreV1().Pods(s.name).Delete(s.Context(), pod, metav1.DeleteOptions{}))
}
