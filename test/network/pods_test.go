//go:build e2e && linux

package network

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Networking Pods should function for intra-pod communication: http
func TestNetworking_IntraPodHTTP(t *testing.T) {
	fromPods(t, false, "http", 8080)
}

// Networking Pods should function for intra-pod communication: udp
func TestNetworking_IntraPodUDP(t *testing.T) {
	fromPods(t, false, "udp", 8081)
}

// Networking Pods should function for node-pod communication: http
func TestNetworking_NodePodHTTP(t *testing.T) {
	fromPods(t, true, "http", 8080)
}

// Networking Pods should function for node-pod communication: udp
func TestNetworking_NodePodUDP(t *testing.T) {
	fromPods(t, true, "udp", 8081)
}

// fromPods sends requests to a server on every Node, from a pod on the pod network or on the host network.
func fromPods(t *testing.T, hostNetwork bool, scheme string, port int) {
	t.Helper()
	s := share(t)
	spec := idle()
	spec.HostNetwork = hostNetwork
	s.run("client", "client", spec)
	for _, node := range nodes {
		name := "netserver-" + node
		pod := s.run(name, "netserver", on(node, program("serve")))
		s.answers("client", fmt.Sprintf("%s://%s:%d/hostname", scheme, pod.Status.PodIP, port), name)
	}
}

// HostPort validates that there is no conflict between pods with same hostPort but different hostIP and protocol
func TestHostPort_HostPort(t *testing.T) {
	s := share(t)
	b, c := s.machines[1], s.machines[2]
	serve := func(name, address string, protocol corev1.Protocol, port int32) {
		spec := on("b-0", program("serve"))
		spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 54323, HostIP: address, Protocol: protocol,
			ContainerPort: port}}
		s.run(name, "host-port", spec)
	}
	serve("pod1", "127.0.0.1", corev1.ProtocolTCP, 8080)
	serve("pod2", b.address, corev1.ProtocolTCP, 8080)
	serve("pod3", b.address, corev1.ProtocolUDP, 8081)
	address := b.address + ":54323"
	s.answersOn(b, "http://127.0.0.1:54323/hostname", "pod1")
	for _, m := range []*machine{b, c} {
		s.answersOn(m, "http://"+address+"/hostname", "pod2")
		s.answersOn(m, "udp://"+address+"/hostname", "pod3")
	}
	s.answersOn(c, "http://"+address+"/clientip", c.address)
	s.run("client", "client", on("b-0", idle()))
	s.answers("client", "http://"+address+"/hostname", "pod2")
	_, err := s.kubectl("-n", s.name, "delete", "pod", "pod2", "--wait")
	require.NoError(t, err)
	s.eventually("the port of a pod that has gone is closed", func() error {
		if out, err := c.try(netexec, "get", "-timeout", "500ms", "http://"+address+"/hostname"); err == nil {
			return fmt.Errorf("it answers %s", out)
		}
		return nil
	})
	s.answersOn(c, "udp://"+address+"/hostname", "pod3")
}

// Kubectl Guestbook application should create and stop a working application
func TestKubectl_Guestbook(t *testing.T) {
	s := share(t)
	s.pause("client")
	tier := func(name string, port int, replicas int, args ...string) {
		service := s.service(name, name, func(spec *corev1.ServiceSpec) {
			spec.Ports = []corev1.ServicePort{{Port: int32(port)}}
		})
		require.NotEmpty(t, service.Spec.ClusterIP)
		for i := range replicas {
			spec := program(append([]string{"guestbook"}, args...)...)
			spec.Containers[0].ReadinessProbe = readyAt(port)
			s.run(fmt.Sprintf("%s-%d", name, i), name, spec)
		}
	}
	tier("agnhost-primary", 6379, 1, "leader", "-http", ":6379")
	tier("agnhost-replica", 6379, 2, "follower", "-http", ":6379")
	tier("frontend", 80, 3, "frontend", "-http", ":80")
	s.eventually("the frontend shows an entry", func() error {
		if _, err := s.in("client", "get", "http://frontend/guestbook?add=TestEntry"); err != nil {
			return err
		}
		lines, err := s.in("client", "get", "http://frontend/guestbook")
		if err != nil {
			return err
		}
		return just(lines, nil, []string{"TestEntry"})
	})
	_, err := s.kubectl("-n", s.name, "delete", "services,pods", "--selector", "app in (agnhost-primary, agnhost-replica, frontend)")
	require.NoError(t, err)
	_, err = s.kubectl("-n", s.name, "delete", "services", "--all")
	require.NoError(t, err)
	s.silent("client", "http://frontend/guestbook")
	pods, err := s.client.CoreV1().Pods(s.name).List(t.Context(), metav1.ListOptions{LabelSelector: "app!=client"})
	require.NoError(t, err)
	require.Empty(t, pods.Items)
}
