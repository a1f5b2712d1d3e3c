//go:build e2e && linux

package network

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// digs waits until a name has exactly these records of a type in a pod.
func (s *space) digs(pod, kind, name string, want ...string) {
	s.Helper()
	slices.Sort(want)
	s.eventually(fmt.Sprintf("%s has the records %v of type %s", name, want, kind), func() error {
		out, err := s.kubectl("-n", s.name, "exec", pod, "--", inPod, "dig", kind, name)
		if err != nil {
			return err
		}
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if slices.Sort(lines); !slices.Equal(lines, want) {
			return fmt.Errorf("it has %v", lines)
		}
		return nil
	})
}

// finds waits until programs in a pod resolve a name to an address.
func (s *space) finds(pod, name, address string) {
	s.Helper()
	s.eventually(name+" is "+address+" in "+pod, func() error {
		lines, err := s.in(pod, "host", name)
		if err == nil && !slices.Contains(lines, address) {
			err = fmt.Errorf("it is %v", lines)
		}
		return err
	})
}

// DNS should provide DNS for the cluster
func TestDNS_Cluster(t *testing.T) {
	s := share(t)
	pod := s.pause("client")
	kubernetes, err := s.client.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	require.NoError(t, err)
	s.digs("client", "a", "kubernetes.default.svc.cluster.local", kubernetes.Spec.ClusterIP)
	s.digs("client", "a", "kubernetes.default", kubernetes.Spec.ClusterIP)
	s.finds("client", "client", pod.Status.PodIP) // its own host name, by /etc/hosts
}

// DNS should provide DNS for services
func TestDNS_Services(t *testing.T) {
	s := share(t)
	s.pause("client")
	pod := s.server("server", "web")
	headless := func(spec *corev1.ServiceSpec) { spec.ClusterIP = corev1.ClusterIPNone }
	s.service("headless", "web", headless)
	regular := s.service("regular", "web", nil)
	domain := s.name + ".svc.cluster.local"
	for _, name := range []string{"regular", "regular." + s.name, "regular." + s.name + ".svc", "regular." + domain} {
		s.digs("client", "a", name, regular.Spec.ClusterIP)
	}
	s.digs("client", "a", "headless."+domain, pod.Status.PodIP)
	s.digs("client", "srv", "_http._tcp.regular."+domain, "0 100 80 regular."+domain+".")
	dashes := strings.ReplaceAll(pod.Status.PodIP, ".", "-")
	s.digs("client", "srv", "_http._tcp.headless."+domain, "0 100 8080 "+dashes+".headless."+domain+".")
	s.digs("client", "ptr", reverse(regular.Spec.ClusterIP), "regular."+domain+".")
	s.digs("client", "ptr", reverse(pod.Status.PodIP), dashes+".headless."+domain+".")
}

func reverse(address string) string {
	parts := strings.Split(address, ".")
	slices.Reverse(parts)
	return strings.Join(parts, ".") + ".in-addr.arpa"
}

// DNS should resolve DNS of partial qualified names for services
func TestDNS_PQDN(t *testing.T) {
	s := share(t)
	s.pause("client")
	pod := s.server("server", "web")
	regular := s.service("regular", "web", nil)
	s.service("headless", "web", func(spec *corev1.ServiceSpec) { spec.ClusterIP = corev1.ClusterIPNone })
	for _, suffix := range []string{"", "." + s.name, "." + s.name + ".svc"} {
		s.digs("client", "a", "regular"+suffix, regular.Spec.ClusterIP)
		s.digs("client", "a", "headless"+suffix, pod.Status.PodIP)
		s.digs("client", "srv", "_http._tcp.regular"+suffix, "0 100 80 regular."+s.name+".svc.cluster.local.")
	}
}

// DNS should provide DNS for ExternalName services
func TestDNS_ExternalName(t *testing.T) {
	s := share(t)
	s.pause("client")
	s.service("outside", "", func(spec *corev1.ServiceSpec) {
		*spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "foo.example.com"}
	})
	name := "outside." + s.name + ".svc.cluster.local"
	s.digs("client", "cname", name, "foo.example.com.")
	s.change("outside", func(spec *corev1.ServiceSpec) { spec.ExternalName = "bar.example.com" })
	s.digs("client", "cname", name, "bar.example.com.")
	service := s.change("outside", func(spec *corev1.ServiceSpec) {
		*spec = corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, Ports: []corev1.ServicePort{{Port: 80}}}
	})
	s.digs("client", "a", name, service.Spec.ClusterIP)
}

// DNS should provide DNS for pods for Hostname
func TestDNS_Hostname(t *testing.T) {
	s := share(t)
	pod := s.inSubdomain()
	s.finds("querier", "querier.subdomain."+s.name+".svc.cluster.local", pod.Status.PodIP)
	s.finds("querier", "querier", pod.Status.PodIP)
}

// DNS should provide DNS for pods for Subdomain
func TestDNS_Subdomain(t *testing.T) {
	s := share(t)
	pod := s.inSubdomain()
	for _, suffix := range []string{"", "." + s.name, "." + s.name + ".svc.cluster.local"} {
		s.digs("querier", "a", "querier.subdomain"+suffix, pod.Status.PodIP)
	}
}

// inSubdomain runs a pod with a name of a headless Service.
func (s *space) inSubdomain() *corev1.Pod {
	s.Helper()
	s.service("subdomain", "querier", func(spec *corev1.ServiceSpec) { spec.ClusterIP = corev1.ClusterIPNone })
	spec := program("serve")
	spec.Hostname, spec.Subdomain = "querier", "subdomain"
	return s.run("querier", "querier", spec)
}
