package proxy

import (
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// exposed gives a Service a node port, load balancer addresses and external IPs.
func exposed(s *corev1.Service) {
	s.Spec.Type = corev1.ServiceTypeLoadBalancer
	for i := range s.Spec.Ports {
		s.Spec.Ports[i].NodePort = 30080
	}
	s.Spec.ExternalIPs = []string{"198.51.100.1", "2001:db8:2::1"}
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.2"}, {IP: "2001:db8:2::2"},
		{IP: "198.51.100.3", IPMode: ptr.To(corev1.LoadBalancerIPModeProxy)}}
}

func localOutside(s *corev1.Service) {
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
}

func localInside(s *corev1.Service) {
	s.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
}

func sticky(seconds int32) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
			ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
	}
}

// outsideAddresses are the external addresses of an exposed Service.
var outsideAddresses = []string{"192.0.2.10:30080", "[2001:db8::10]:30080", "198.51.100.1:80", "[2001:db8:2::1]:80",
	"198.51.100.2:80", "[2001:db8:2::2]:80"}

func TestProxy_MasqueradesExternalTrafficOfPolicyCluster(t *testing.T) {
	w := newWorld(t)
	a, client := w.pod().serve(8080), w.pod()
	s := newService("web", 1, exposed)
	w.set(w.rules(), s, newSlices(s, a.endpoint()))
	for _, to := range outsideAddresses {
		for _, network := range []string{"tcp", "udp"} {
			for _, from := range []*os.File{w.outside.namespace, client.namespace} {
				name, source, err := ask(from, network, to)
				require.NoError(t, err, "%s %s", network, to)
				require.Equal(t, a.v4.String(), name)
				require.Contains(t, []string{"169.254.0.1", "fd00::", "2001:db8::10"}, source, "%s %s", network, to)
			}
			if network == "tcp" {
				w.answers(w.node, network, to, a)
			}
		}
	}
	w.drops(w.outside.namespace, "198.51.100.3:80") // a load balancer of mode Proxy sends to node ports
}

func TestProxy_KeepsTheSourceOfPolicyLocal(t *testing.T) {
	w := newWorld(t)
	a, b := w.pod().serve(8080), w.pod().serve(8080)
	s := newService("web", 1, exposed, localOutside)
	rules := w.rules(func(p *policy) {
		p.clusterCIDR = netip.MustParsePrefix("10.244.0.0/16")
		if p.serviceCIDRs[0].Addr().Is6() {
			p.clusterCIDR = netip.MustParsePrefix("fd00::/64")
		}
	})
	w.set(rules, s, newSlices(s, a.endpoint(), b.endpoint(elsewhere)))
	for range 10 {
		for _, to := range outsideAddresses {
			name, source, err := ask(w.outside.namespace, "tcp", to)
			require.NoError(t, err, to)
			require.Equal(t, a.v4.String(), name, "only local endpoints answer")
			require.Contains(t, []string{w.outside.v4.String(), w.outside.v6.String()}, source)
		}
	}
	client := w.pod()
	for _, to := range outsideAddresses {
		seen := map[string]bool{}
		require.Eventually(t, func() bool {
			name, _, err := ask(client.namespace, "tcp", to)
			require.NoError(t, err)
			seen[name] = true
			return len(seen) == 2
		}, limit, tick, "a pod is not outside, and reaches all endpoints at %s", to)
	}
}

func TestProxy_DropsForPolicyLocalWithoutLocalEndpoints(t *testing.T) {
	w := newWorld(t)
	a, client := w.pod().serve(8080), w.pod()
	s := newService("web", 1, exposed, localOutside, localInside)
	rules := w.rules()
	w.set(rules, s, newSlices(s, a.endpoint(elsewhere)))
	for _, to := range outsideAddresses {
		w.drops(w.outside.namespace, to)
		w.answers(w.node, "tcp", to, a) // the node itself is not outside
	}
	w.drops(client.namespace, "10.96.0.1:80")
	w.drops(client.namespace, "[fd96::1]:80")

	w.set(rules, s, newSlices(s, a.endpoint(elsewhere, terminating), a.endpoint(terminating)))
	w.answers(w.outside.namespace, "tcp", outsideAddresses[0], a)
	w.answers(client.namespace, "tcp", "10.96.0.1:80", a)

	w.set(rules, s, nil)
	for _, to := range outsideAddresses {
		w.refuses(w.outside.namespace, "tcp", to)
		w.refuses(w.outside.namespace, "udp", to)
	}
}

func TestProxy_RestrictsLoadBalancersToSourceRanges(t *testing.T) {
	w := newWorld(t)
	a, client := w.pod().serve(8080), w.pod()
	rules := w.rules()
	ranges := func(ranges ...string) {
		s := newService("web", 1, exposed, func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = ranges })
		w.set(rules, s, newSlices(s, a.endpoint()))
	}
	ranges("203.0.113.0/24", "203.0.113.0/28", "10.0.0.0/9", "2001:db8:1::/64")
	for i, to := range outsideAddresses {
		w.answers(w.outside.namespace, "tcp", to, a)
		if i < 4 {
			w.answers(client.namespace, "tcp", to, a)
		} else {
			w.drops(client.namespace, to)
		}
	}
	ranges("10.244.0.0/16", "fd00::/64")
	for i, to := range outsideAddresses {
		w.answers(client.namespace, "tcp", to, a)
		if i < 4 {
			w.answers(w.outside.namespace, "tcp", to, a)
		} else {
			w.drops(w.outside.namespace, to)
		}
	}
	ranges()
	for _, to := range outsideAddresses {
		w.answers(w.outside.namespace, "tcp", to, a)
	}
}

func TestProxy_MasqueradesHairpinTraffic(t *testing.T) {
	w := newWorld(t)
	a := w.pod().serve(8080)
	s := newService("web", 1)
	w.set(w.rules(), s, newSlices(s, a.endpoint()))
	for _, to := range []string{"10.96.0.1:80", "[fd96::1]:80"} {
		_, source, err := ask(a.namespace, "tcp", to)
		require.NoError(t, err)
		require.NotContains(t, []string{a.v4.String(), a.v6.String()}, source)
	}
}

func TestProxy_MasqueradesAsConfigured(t *testing.T) {
	t.Parallel()
	keeps := func(in, out bool) map[bool]bool { return map[bool]bool{true: in, false: out} }
	for name, test := range map[string]struct {
		change func(*policy)
		keeps  map[bool]bool // whether a source in the pods' network, and outside it, stays
	}{
		"nothing by default": {func(*policy) {}, keeps(true, true)},
		"all":                {func(p *policy) { p.masqueradeAll = true }, keeps(false, false)},
		"off-cluster": {func(p *policy) {
			p.clusterCIDR = netip.MustParsePrefix("10.244.0.0/16")
			if p.serviceCIDRs[0].Addr().Is6() {
				p.clusterCIDR = netip.MustParsePrefix("fd00::/64")
			}
		}, keeps(true, false)},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			a, client := w.pod().serve(8080), w.pod()
			s := newService("web", 1)
			w.set(w.rules(test.change), s, newSlices(s, a.endpoint()))
			for _, to := range []string{"10.96.0.1:80", "[fd96::1]:80"} {
				for inside, p := range map[bool]*pod{true: client, false: w.outside} {
					_, source, err := ask(p.namespace, "tcp", to)
					require.NoError(t, err)
					require.Equal(t, test.keeps[inside], source == p.v4.String() || source == p.v6.String(),
						"%s from %s", to, source)
				}
			}
		})
	}
}

func TestProxy_SupportsSessionAffinity(t *testing.T) {
	w := newWorld(t)
	pods := []*pod{w.pod().serve(8080), w.pod().serve(8080), w.pod().serve(8080)}
	client := w.pod()
	s := newService("web", 1, exposed, sticky(1000))
	ends := []discoveryv1.Endpoint{pods[0].endpoint(), pods[1].endpoint(), pods[2].endpoint()}
	rules := w.rules()
	w.set(rules, s, newSlices(s, ends...))
	addresses := append([]string{"10.96.0.1:80", "[fd96::1]:80"}, outsideAddresses...)
	stays := func(from *pod) string {
		name, _, err := ask(from.namespace, "tcp", "10.96.0.1:80")
		require.NoError(t, err)
		for range 5 {
			for i := 0; i < len(addresses); i++ {
				again, _, err := ask(from.namespace, "tcp", addresses[i])
				require.NoError(t, err)
				if netip.MustParseAddrPort(addresses[i]).Addr().Is4() {
					require.Equal(t, name, again, addresses[i])
				}
			}
		}
		return name
	}
	before := stays(client)

	again := w.rules() // restart the proxy
	w.set(again, s, newSlices(s, ends...))
	require.Equal(t, before, stays(client))

	for i, p := range pods { // the endpoint is removed
		if p.v4.String() == before {
			ends = append(ends[:i:i], ends[i+1:]...)
			break
		}
	}
	w.set(again, s, newSlices(s, ends...))
	require.NotEqual(t, before, stays(client))

	s = newService("web", 1, sticky(1))
	w.set(again, s, newSlices(s, ends...))
	name, _, err := ask(client.namespace, "udp", "10.96.0.1:80")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		other, _, err := ask(client.namespace, "udp", "10.96.0.1:80")
		require.NoError(t, err)
		return other != name
	}, limit, 1100*time.Millisecond, "after a second without connections the client is forgotten")
}

func TestProxy_DeletesUDPFlowsToRemovedEndpoints(t *testing.T) {
	w := newWorld(t)
	a, b, client := w.pod().serve(8080), w.pod().serve(8080), w.pod()
	rules := w.rules()
	s := newService("web", 1, exposed)
	for _, to := range []string{"10.96.0.1:80", "[fd96::1]:80", "192.0.2.10:30080", "198.51.100.1:80"} {
		w.set(rules, s, newSlices(s, a.endpoint()))
		c, err := dial(client.namespace, "udp", to)
		require.NoError(t, err)
		defer c.Close()
		for range 2 {
			name, _, err := question(c, "udp")
			require.NoError(t, err)
			require.Equal(t, a.v4.String(), name)
		}
		w.set(rules, s, newSlices(s, b.endpoint()))
		name, _, err := question(c, "udp")
		require.NoError(t, err)
		require.Equal(t, b.v4.String(), name, "the same flow continues at the other endpoint")
	}
}

func TestProxy_RedirectsUDPFlowsOlderThanTheService(t *testing.T) {
	w := newWorld(t)
	a, client := w.pod().serve(8080), w.pod()
	rules := w.rules()
	other := newService("other", 2)
	w.set(rules, other, newSlices(other, a.endpoint())) // without rules the kernel has no flows
	c, err := dial(client.namespace, "udp", "198.51.100.1:80")
	require.NoError(t, err)
	defer c.Close()
	_, _, err = question(c, "udp") // the packet leaves by the default route
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	s := newService("web", 1, exposed)
	w.set(rules, s, newSlices(s, a.endpoint()))
	name, _, err := question(c, "udp")
	require.NoError(t, err)
	require.Equal(t, a.v4.String(), name)
}

func TestProxy_DoesNotServeForeignAddresses(t *testing.T) {
	w := newWorld(t)
	a, client := w.pod().serve(8080), w.pod()
	rules := w.rules()
	s := newService("web", 1)
	w.set(rules, s, newSlices(s, a.endpoint()))
	thief := newService("thief", 2, func(s *corev1.Service) {
		s.Spec.ExternalIPs = []string{"10.96.0.1", "fd96::1", "127.0.0.1", "::1", "0.0.0.0"}
	})
	w.set(rules, thief, newSlices(thief, newEndpoint("127.0.0.1", "::1"), newEndpoint("10.96.0.3", "fd96::3"),
		newEndpoint("169.254.169.254", "fe80::2"), newEndpoint("224.0.0.1", "ff02::1"), newEndpoint("0.0.0.0", "::")))
	for range 20 {
		w.answers(client.namespace, "tcp", "10.96.0.1:80", a)
		w.answers(client.namespace, "tcp", "[fd96::1]:80", a)
	}
	other := newService("other", 3)
	w.set(rules, other, newSlices(other, a.endpoint()))
	_, _, err := ask(client.namespace, "tcp", "10.96.0.2:80")
	require.ErrorIs(t, err, syscall.ECONNREFUSED, "an endpoint's address is not a Service")
	w.set(rules, thief, nil)
	rules.update(types.NamespacedName{Namespace: "test", Name: "web"}, nil, nil)
	w.commit(rules)
	w.refuses(client.namespace, "tcp", "10.96.0.1:80") // the thief owns it now, without endpoints
}
