//go:build e2e && linux

package network

import (
	"fmt"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/network/nft"
)

// Two machines have agents. The third one is a client outside the cluster that routes to the second one.
func TestExternalAddresses_AnswerMachinesAndTheirClients(t *testing.T) {
	t.Parallel()
	need(t)
	flags := []string{"--network-mode", "vxlan", "--masquerade"}
	c, err := startClusterOf(nodes[:2], []string{"--service-lb-pool", "203.0.113.32/28"}, flags...)
	require.NoError(t, err)
	t.Cleanup(c.close)
	s := c.space(t)
	a, b, outside := s.machines[0], s.machines[1], s.machines[2]
	for i, m := range s.machines { // the machines only need a route to an address, with any next hop
		require.NoError(t, m.do(func() error { return routeExternal(s.machines[[]int{2, 2, 1}[i]].address) }))
	}
	s.pause("client")
	s.run("web", "web", on("b-0", program("serve")))
	s.service("web", "web", func(spec *corev1.ServiceSpec) {
		spec.Type, spec.ExternalIPs = corev1.ServiceTypeLoadBalancer, []string{"203.0.113.9", b.address}
	})
	addresses := []string{"203.0.113.9", b.address, s.balancer("web")}
	everywhere := func() {
		t.Helper()
		for _, address := range addresses {
			url := "http://" + address + "/hostname"
			for _, m := range []*machine{a, b, outside} {
				s.answersOn(m, url, "web")
			}
			s.answers("client", url, "web")
		}
	}
	everywhere()
	s.change("web", func(spec *corev1.ServiceSpec) {
		spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	})
	for _, address := range addresses {
		s.answersOn(outside, "http://"+address+"/clientip", outside.address)
	}
	everywhere()
	s.obeyPolicies(addresses)

	s.processes["b-0"].kill()
	for _, address := range addresses {
		s.answersOn(outside, "http://"+address+"/hostname", "web")
	}
	require.NoError(t, s.startAgent("b-0", flags...))
	everywhere()
	s.stealNothing()
	s.leaveNothing()
}

// obeyPolicies creates a policy that admits no client. It applies to clients outside, but not to the pod's own machine.
func (s *space) obeyPolicies(addresses []string) {
	s.Helper()
	policies := s.client.NetworkingV1().NetworkPolicies(s.name)
	_, err := policies.Create(s.Context(), &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "nobody"},
		Spec: networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}}}, metav1.CreateOptions{})
	require.NoError(s, err)
	for _, address := range addresses {
		s.silentOn(s.machines[2], "http://"+address+"/hostname")
		s.answersOn(s.machines[1], "http://"+address+"/hostname", "web")
	}
	require.NoError(s, policies.Delete(s.Context(), "nobody", metav1.DeleteOptions{}))
	for _, address := range addresses {
		s.answersOn(s.machines[2], "http://"+address+"/hostname", "web")
	}
}

// silentOn waits until a URL does not answer on a machine.
func (s *space) silentOn(m *machine, url string) {
	s.Helper()
	s.eventually(url+" is silent on "+m.address, func() error {
		if out, err := m.try(netexec, "get", "-timeout", "500ms", url); err == nil {
			return fmt.Errorf("it answers %s", out)
		}
		return nil
	})
}

// balancer returns the address of a Service's load balancer, once it has one.
func (s *space) balancer(service string) (address string) {
	s.Helper()
	s.eventually("the load balancer has an address", func() error {
		got, err := s.client.CoreV1().Services(s.name).Get(s.Context(), service, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(got.Status.LoadBalancer.Ingress) == 0 {
			return fmt.Errorf("%v", got.Status)
		}
		address = got.Status.LoadBalancer.Ingress[0].IP
		return nil
	})
	return address
}

// stealNothing creates a Service that claims the addresses and ports of the API server and of an agent. Both must still
// answer there.
func (s *space) stealNothing() {
	s.Helper()
	node, err := s.client.CoreV1().Nodes().Get(s.Context(), "b-0", metav1.GetOptions{})
	require.NoError(s, err)
	a, b := s.machines[0], s.machines[1]
	s.service("thief", "web", func(spec *corev1.ServiceSpec) {
		spec.ExternalIPs = []string{a.address, b.address}
		spec.Ports = append(spec.Ports, corev1.ServicePort{Name: "api", Port: 6443, TargetPort: spec.Ports[0].TargetPort},
			corev1.ServicePort{Name: "agent", Port: node.Status.DaemonEndpoints.KubeletEndpoint.Port,
				TargetPort: spec.Ports[0].TargetPort},
			corev1.ServicePort{Name: "free", Port: 7, TargetPort: spec.Ports[0].TargetPort})
	})
	for _, m := range []*machine{a, b} {
		for _, from := range s.machines {
			s.answersOn(from, "http://"+m.address+":7/hostname", "web")
		}
	}
	_, err = b.try(coxswain, "health", "https://"+a.address+":6443/readyz")
	require.NoError(s, err)
	_, err = s.kubectl("get", "nodes")
	require.NoError(s, err)
	s.answers("web", "http://127.0.0.1:8080/hostname", "web") // by exec, which uses the agent
}

// leaveNothing deletes the Services, and then everything that a killed agent has left.
func (s *space) leaveNothing() {
	s.Helper()
	b, outside := s.machines[1], s.machines[2]
	_, err := s.kubectl("-n", s.name, "delete", "service", "web")
	require.NoError(s, err)
	s.silentOn(outside, "http://203.0.113.9/hostname")
	s.answersOn(outside, "http://"+b.address+":7/hostname", "web")
	s.processes["b-0"].kill()
	s.answersOn(outside, "http://"+b.address+":7/hostname", "web")
	_, err = b.try(coxswain, "node", "--cleanup", "--root-dir", s.folder("b-0"))
	require.NoError(s, err)
	s.silentOn(outside, "http://"+b.address+":7/hostname")
	require.NoError(s, b.do(func() error {
		routes, err := netlink.RouteList(nil, netlink.FAMILY_ALL)
		for _, r := range routes {
			require.NotRegexp(s, `^(240|10)\.`, r.Dst.String())
		}
		require.NoError(s, err)
		return nft.Once(nil, func(t *nft.Transaction) error {
			tables, err := t.ListTables()
			require.Empty(s, tables)
			return err
		})
	}))
}

// routeExternal adds a machine's route to the external addresses.
func routeExternal(via string) error {
	uplink, err := netlink.LinkByName("uplink")
	if err != nil {
		return err
	}
	_, destination, err := net.ParseCIDR("203.0.113.0/24")
	if err != nil {
		return err
	}
	return netlink.RouteAdd(&netlink.Route{LinkIndex: uplink.Attrs().Index, Dst: destination, Gw: net.ParseIP(via)})
}
