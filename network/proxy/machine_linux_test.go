package proxy

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/coxswain-dev/coxswain/network/netns"
	"github.com/coxswain-dev/coxswain/network/router"
)

// site is a world with a router as its node, on a machine of its own. The outside reaches the router by the machine
// only.
type site struct {
	*world
	machine *os.File
	router  *router.Router
	rules   *ruleset
	objects map[types.NamespacedName]object
}

// object is a Service with its slices.
type object struct {
	service *corev1.Service
	slices  []*discoveryv1.EndpointSlice
}

// onMachine is the router, as an agent on the machine uses it.
type onMachine struct{ *site }

func (m onMachine) Machines() []netip.Addr { return m.router.Machines() }

func (m onMachine) StandIns() (all []netip.Prefix, err error) {
	err = netns.Do(m.machine, func() (err error) { all, err = m.router.StandIns(); return err })
	return all, err
}

func (m onMachine) ServeAddresses(all map[uint8]map[netip.AddrPort]netip.Addr) (refused []netip.AddrPort, err error) {
	err = netns.Do(m.machine, func() (err error) { refused, err = m.router.ServeAddresses(all); return err })
	return refused, err
}

// The machine's own addresses, which are also its Node's, and the pods' ranges.
const own4, own6, pods4, pods6 = "192.0.2.1", "2001:db8::1", "10.244.0.0/24", "fd00::/64"

func newSite(t *testing.T) *site {
	t.Helper()
	t.Parallel()
	s := &site{world: &world{T: t}, machine: namespace(t), objects: map[types.NamespacedName]object{}}
	s.outside = &pod{world: s.world, namespace: namespace(t), v4: netip.MustParseAddr("192.0.2.2"),
		v6: netip.MustParseAddr("2001:db8::2")}
	require.NoError(t, netns.Do(s.machine, func() (err error) {
		s.router, err = router.Open(nil, router.Options{})
		return err
	}))
	t.Cleanup(s.router.Close)
	s.node = s.router.Namespace()
	for _, n := range []*os.File{s.machine, s.node, s.outside.namespace} {
		require.NoError(t, netns.Do(n, sendAtOnce))
	}
	require.NoError(t, netns.Do(s.machine, func() error {
		return s.router.AddNode("cox0", netip.MustParsePrefix(pods4), netip.MustParsePrefix(pods6))
	}))
	s.connectOutside()
	var err error
	s.rules, err = openRuleset(s.node, onMachine{s})
	require.NoError(t, err)
	t.Cleanup(s.rules.close)
	for f := range families {
		s.rules.setPolicy(f, policy{serviceCIDRs: []netip.Prefix{netip.MustParsePrefix(
			[]string{"10.96.0.0/16", "fd96::/112"}[f])}})
	}
	nodes := []netip.Addr{netip.MustParseAddr(own4), netip.MustParseAddr(own6)}
	s.rules.setNodes(topology{nodes: map[string]bool{here: true}, zones: map[string]bool{},
		pods: []netip.Prefix{netip.MustParsePrefix(pods4), netip.MustParsePrefix(pods6)}}, nil, nodes)
	return s
}

// sendAtOnce disables IPv6 duplicate address detection, so that devices send at once.
func sendAtOnce() error {
	return os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0)
}

// connectOutside connects the machine with the outside. Each is the other's default route.
func (s *site) connectOutside() {
	s.Helper()
	s.in(s.machine, func(h *netlink.Handle) error {
		return h.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "uplink"}, PeerName: "uplink",
			PeerNamespace: netlink.NsFd(int(s.outside.namespace.Fd()))})
	})
	for _, end := range []struct {
		namespace *os.File
		own, via  []string
	}{{s.machine, []string{own4 + "/24", own6 + "/64"}, []string{"192.0.2.2", "2001:db8::2"}},
		{s.outside.namespace, []string{"192.0.2.2/24", "2001:db8::2/64"}, []string{own4, own6}}} {
		s.in(end.namespace, func(h *netlink.Handle) error {
			for _, device := range []string{"lo", "uplink"} {
				link, err := h.LinkByName(device)
				if err == nil {
					err = h.LinkSetUp(link)
				}
				if err != nil {
					return err
				}
			}
			uplink, err := h.LinkByName("uplink")
			for i := range end.own {
				if err == nil {
					err = h.AddrAdd(uplink, address128(end.own[i]))
				}
				if err == nil {
					err = h.RouteAdd(&netlink.Route{LinkIndex: uplink.Attrs().Index, Gw: net.ParseIP(end.via[i])})
				}
			}
			return err
		})
	}
}

// pod creates a pod that the router connects.
func (s *site) pod() *pod {
	s.Helper()
	s.pods++
	n := s.pods + 4
	p := &pod{world: s.world, namespace: namespace(s), v4: netip.AddrFrom4([4]byte{10, 244, 0, byte(n)}),
		v6: netip.MustParseAddr(fmt.Sprintf("fd00::%x", n))}
	s.in(p.namespace, func(h *netlink.Handle) error {
		lo, err := h.LinkByName("lo")
		if err != nil {
			return err
		}
		return h.LinkSetUp(lo)
	})
	require.NoError(s, netns.Do(s.machine, func() error { return s.router.ConnectPod(p.namespace, p.v4, p.v6) }))
	return p
}

// apply updates a Service with these endpoints, and commits.
func (s *site) apply(service *corev1.Service, ends ...discoveryv1.Endpoint) {
	s.Helper()
	name := types.NamespacedName{Namespace: service.Namespace, Name: service.Name}
	s.objects[name] = object{service, newSlices(service, ends...)}
	s.update(name)
}

func (s *site) update(name types.NamespacedName) {
	s.Helper()
	s.rules.update(name, s.objects[name].service, s.objects[name].slices)
	require.NoError(s, s.rules.joinMachine())
	for _, name := range s.rules.takeOutdated() {
		s.rules.update(name, s.objects[name].service, s.objects[name].slices)
	}
	s.commit(s.rules)
	_, _, err := s.rules.serveMachine()
	require.NoError(s, err)
}

func (s *site) remove(service *corev1.Service) {
	s.Helper()
	name := types.NamespacedName{Namespace: service.Namespace, Name: service.Name}
	delete(s.objects, name)
	s.update(name)
}

// silent requires that no Service answers.
func (s *site) silent(from *os.File, network, to string) {
	s.Helper()
	name, _, err := ask(from, network, to)
	require.Error(s, err, "%s %s: %s", network, to, name)
}

// onOwn adds the machine's own addresses to an exposed Service.
func onOwn(s *corev1.Service) {
	exposed(s)
	s.Spec.Type, s.Spec.Ports[0].NodePort, s.Spec.Ports[1].NodePort = corev1.ServiceTypeLoadBalancer, 0, 0
	s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, own4, own6)
}

// onMachines are the addresses of a Service with onOwn.
var onMachines = []string{"192.0.2.1:80", "[2001:db8::1]:80", "198.51.100.1:80", "[2001:db8:2::1]:80",
	"198.51.100.2:80", "[2001:db8:2::2]:80"}

func TestMachine_AnswersAtExternalAddresses(t *testing.T) {
	s := newSite(t)
	a, client := s.pod().serve(8080), s.pod()
	service := newService("web", 1, onOwn)
	s.apply(service, a.endpoint())
	for _, to := range onMachines {
		for _, network := range []string{"tcp", "udp"} {
			for _, from := range []*os.File{s.outside.namespace, s.machine, client.namespace} {
				name, source, err := ask(from, network, to)
				require.NoError(t, err, "%s %s", network, to)
				require.Equal(t, a.v4.String(), name)
				require.Contains(t, []string{"10.244.0.0", "fd00::"}, source, "policy Cluster: %s %s", network, to)
			}
		}
	}
	s.apply(service)
	for _, to := range onMachines {
		s.refuses(s.outside.namespace, "tcp", to)
		s.refuses(s.outside.namespace, "udp", to)
		s.refuses(s.machine, "tcp", to)
	}
	s.apply(service, a.endpoint())
	s.remove(service)
	for _, to := range onMachines {
		s.silent(s.outside.namespace, "udp", to)
		s.silent(s.machine, "udp", to)
	}
	for _, to := range onMachines[:2] {
		s.refuses(s.outside.namespace, "tcp", to)
		s.refuses(s.machine, "tcp", to)
	}
}

func TestMachine_KeepsTheSourceOfPolicyLocal(t *testing.T) {
	s := newSite(t)
	a, b, client := s.pod().serve(8080), s.pod().serve(8080), s.pod()
	service := newService("web", 1, onOwn, localOutside)
	s.apply(service, a.endpoint(), b.endpoint(elsewhere))
	for _, to := range onMachines {
		for range 5 {
			name, source, err := ask(s.outside.namespace, "tcp", to)
			require.NoError(t, err, to)
			require.Equal(t, a.v4.String(), name, "only local endpoints answer")
			require.Contains(t, []string{s.outside.v4.String(), s.outside.v6.String()}, source)
		}
		for _, from := range []*os.File{s.machine, client.namespace} {
			seen := map[string]bool{}
			require.Eventually(t, func() bool {
				name, _, err := ask(from, "tcp", to)
				require.NoError(t, err)
				seen[name] = true
				return len(seen) == 2
			}, limit, tick, "the machine and its pods are not outside, and reach all endpoints at %s", to)
		}
	}
	s.apply(service, b.endpoint(elsewhere))
	for _, to := range onMachines {
		s.drops(s.outside.namespace, to)
		s.answers(s.machine, "tcp", to, b)
		s.answers(client.namespace, "tcp", to, b)
	}
}

func TestMachine_RestrictsLoadBalancersToSourceRanges(t *testing.T) {
	s := newSite(t)
	a := s.pod().serve(8080)
	ranges := func(ranges ...string) {
		s.apply(newService("web", 1, onOwn, func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = ranges }),
			a.endpoint())
	}
	for _, c := range []struct {
		ranges           []string
		outside, machine bool
	}{
		{[]string{"192.0.2.2/32", "2001:db8::2/128"}, true, false},
		{[]string{"192.0.2.1/32", "2001:db8::1/128"}, false, true}, // the Node's addresses
		{[]string{"192.0.2.0/24", "2001:db8::/64"}, true, true},
		{[]string{"10.0.0.0/8", "fd00::/8"}, false, true},
		{[]string{"198.51.100.0/24", "2001:db8:2::/64"}, false, false},
	} {
		ranges(c.ranges...)
		for i, to := range onMachines {
			for from, allowed := range map[*os.File]bool{s.outside.namespace: c.outside, s.machine: c.machine} {
				if i < 4 || allowed { // external IPs have no source ranges
					s.answers(from, "tcp", to, a)
				} else {
					s.drops(from, to)
				}
			}
		}
	}
}

func TestMachine_ServesEndpointsInItsOwnNetwork(t *testing.T) {
	s := newSite(t)
	client := s.pod()
	host := &pod{world: s.world, namespace: s.machine, v4: netip.MustParseAddr(own4), v6: netip.MustParseAddr(own6)}
	host.serve(8080)
	for _, change := range []func(*corev1.Service){func(*corev1.Service) {}, localOutside} {
		s.apply(newService("web", 1, onOwn, change), host.endpoint())
		for _, to := range onMachines {
			for _, from := range []*os.File{s.outside.namespace, s.machine, client.namespace} {
				s.answers(from, "tcp", to, host)
			}
		}
	}
}

// Two Services with each other's external addresses as endpoints must not loop packets.
func TestMachine_ForwardsAPacketOnlyOnce(t *testing.T) {
	s := newSite(t)
	onPort := func(port int32) func(*corev1.Service) {
		return func(s *corev1.Service) {
			s.Spec.ExternalIPs, s.Spec.Ports = []string{own4}, s.Spec.Ports[:1]
			s.Spec.Ports[0].Port = port
		}
	}
	s.apply(newService("one", 1, onPort(8081)), newEndpoint(own4, own6)) // the target port is 8080
	s.apply(newService("other", 2, onPort(8080)), newEndpoint(own4, own6))
	s.refuses(s.outside.namespace, "tcp", own4+":8080")
	s.refuses(s.outside.namespace, "tcp", own4+":8081")
	s.refuses(s.machine, "tcp", own4+":8081")
}

// An external IP belongs to the older Service, as in the router, and leads to no other.
func TestMachine_GivesAClaimedAddressToTheOlderService(t *testing.T) {
	s := newSite(t)
	a, b, client := s.pod().serve(8080), s.pod().serve(8080), s.pod()
	older, younger := newService("older", 1, onOwn), newService("younger", 2, onOwn)
	older.CreationTimestamp, younger.CreationTimestamp = metav1.Unix(50, 0), metav1.Unix(100, 0)
	s.apply(younger, b.endpoint())
	s.apply(older, a.endpoint())
	for _, to := range onMachines {
		for _, from := range []*os.File{s.outside.namespace, s.machine, client.namespace} {
			s.answers(from, "tcp", to, a)
		}
	}
	s.remove(older)
	for _, to := range onMachines {
		for _, from := range []*os.File{s.outside.namespace, s.machine, client.namespace} {
			s.answers(from, "tcp", to, b)
		}
	}
}

func TestMachine_ReservesAddressesOfAPIServers(t *testing.T) {
	s := newSite(t)
	a, client := s.pod().serve(8080), s.pod()
	servers := newService("kubernetes", 3, func(s *corev1.Service) { s.Namespace = "default" })
	endpoint := func(v4, v6 string) {
		s.apply(servers, newEndpoint(v4, v6))
	}
	thief := newService("thief", 1, onOwn, func(s *corev1.Service) {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "api", Protocol: corev1.ProtocolTCP, Port: 8080})
	})
	answers := func(to string, yes bool) {
		t.Helper()
		for _, from := range []*os.File{s.outside.namespace, s.machine, client.namespace} {
			if yes {
				s.answers(from, "tcp", to, a)
			} else {
				s.silent(from, "tcp", to)
			}
		}
	}
	s.apply(thief, a.endpoint())
	answers("192.0.2.1:8080", true)
	endpoint(own4, own6) // at port 8080
	answers("192.0.2.1:8080", false)
	answers("[2001:db8::1]:8080", false)
	answers("198.51.100.1:8080", true)
	answers("192.0.2.1:80", true)
	s.objects[apiServers] = object{servers, nil} // no endpoint is ready
	s.update(apiServers)
	answers("192.0.2.1:8080", false)
	endpoint("198.51.100.1", "2001:db8:2::1")
	answers("192.0.2.1:8080", true)
	answers("198.51.100.1:8080", false)

	s.rules.reserved = []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:8080")}
	endpoint("198.51.100.7", "2001:db8:2::7")
	answers("198.51.100.1:8080", true)
	answers("192.0.2.1:8080", false)
}

func TestForwards_PreferLoadBalancersAndOlderServices(t *testing.T) {
	t.Parallel()
	w := &world{T: t, node: namespace(t)}
	rules := w.rulesOf(&recorder{})
	update := func(number int, age int64, addresses []string, change ...func(*corev1.Service)) {
		s := newService(fmt.Sprint("service-", number), number, func(s *corev1.Service) {
			s.CreationTimestamp, s.Spec.ExternalIPs = metav1.Unix(1000-age, 0), addresses
			s.Spec.Ports = nil
			for i := range 10 {
				s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i),
					Protocol: corev1.ProtocolTCP, Port: int32(1000 + i)})
			}
		})
		for _, c := range change {
			c(s)
		}
		rules.update(types.NamespacedName{Namespace: s.Namespace, Name: s.Name}, s, nil)
	}
	addresses := func(number, count int) (all []string) {
		for i := range count {
			all = append(all, netip.AddrFrom4([4]byte{203, byte(number), byte(i >> 8), byte(i)}).String())
		}
		return all
	}
	update(1, 0, addresses(1, 1))
	require.NoError(t, rules.joinMachine())
	rules.takeOutdated()
	for number := 1; number <= 8; number++ {
		update(number, int64(number), addresses(number, 2*maxAddresses))
	}
	update(9, 0, nil, func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.1"}}
	})
	passed := rules.forwards()[6]
	require.Len(t, passed, maxForwards)
	count := map[byte]int{}
	for at := range passed {
		count[at.Addr().As4()[1]]++
	}
	require.Equal(t, 10, count[51], "the load balancer's")
	for number := byte(3); number <= 8; number++ {
		require.Equal(t, 10*maxAddresses, count[number], "older Services' up to the limit of each")
	}
	require.Equal(t, maxForwards-10-6*10*maxAddresses, count[2], "a younger Service gets the rest")
}

func TestMachine_DoesNotForwardClusterIPs(t *testing.T) {
	s := newSite(t)
	a, b := s.pod().serve(8080), s.pod().serve(8080)
	require.NoError(t, netns.Do(s.machine, func() error {
		return s.router.ReachServices([]netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")})
	}))
	web := newService("web", 1)
	s.apply(web, a.endpoint())
	thief := newService("thief", 2, func(s *corev1.Service) {
		s.Spec.ExternalIPs = []string{"10.96.0.1", "10.96.0.9", "127.0.0.1", "10.244.0.1", a.v4.String()}
	})
	s.apply(thief, b.endpoint())
	s.answers(s.machine, "tcp", "10.96.0.1:80", a)
	for _, to := range []string{"127.0.0.1", "10.244.0.1"} {
		s.refuses(s.machine, "tcp", to+":80")
	}
	passed := s.rules.forwards()[6]
	require.Contains(t, passed, netip.MustParseAddrPort("10.244.0.1:80"), "the machine must refuse it")
	require.NotContains(t, passed, netip.MustParseAddrPort("10.96.0.1:80"))
	require.NotContains(t, passed, netip.MustParseAddrPort("10.96.0.9:80"))
}

func TestRun_UpdatesTheMachine(t *testing.T) {
	s := newSite(t)
	config, client := cluster(t)
	a := s.pod().serve(8080)
	s.start(config, Options{Machine: onMachine{s}, NodePortAddresses: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}})
	service := create(t, client, newService("web", 1, func(s *corev1.Service) {
		s.Spec.ExternalIPs = []string{"198.51.100.1", own4}
	}), a)
	reaches := func(to string, yes bool) {
		t.Helper()
		require.Eventually(t, func() bool {
			_, _, err := ask(s.outside.namespace, "tcp", to)
			return (err == nil) == yes
		}, limit, tick, to)
		_, _, err := ask(s.machine, "tcp", to)
		require.Equal(t, yes, err == nil, to)
	}
	reaches("198.51.100.1:80", true)
	reaches("192.0.2.1:80", true)
	service.Spec.ExternalIPs = service.Spec.ExternalIPs[1:]
	_, err := client.CoreV1().Services(service.Namespace).Update(t.Context(), service, metav1.UpdateOptions{})
	require.NoError(t, err)
	reaches("198.51.100.1:80", false)
	reaches("192.0.2.1:80", true)
	require.NoError(t, client.CoreV1().Services(service.Namespace).Delete(t.Context(), "web", metav1.DeleteOptions{}))
	reaches("192.0.2.1:80", false)
}

// broken is a machine that fails until it is repaired.
type broken struct {
	onMachine
	failures chan error // failures that remain
}

func (b broken) StandIns() ([]netip.Prefix, error) {
	select {
	case err := <-b.failures:
		return nil, err
	default:
		return b.onMachine.StandIns()
	}
}

func TestRun_ServesPodsAndRetriesWhileTheMachineFails(t *testing.T) {
	s := newSite(t)
	config, client := cluster(t)
	a, b := s.pod().serve(8080), s.pod()
	machine, c := broken{onMachine{s}, make(chan error, 3)}, testingclock.NewFakeClock(time.Now())
	for range cap(machine.failures) {
		machine.failures <- errors.New("broken")
	}
	s.start(config, Options{Machine: machine, Clock: c, SyncPeriod: 1000 * time.Hour})
	service := create(t, client, newService("web", 1, func(s *corev1.Service) { s.Spec.ExternalIPs = []string{own4} }), a)
	require.Eventually(t, func() bool {
		c.Step(20 * time.Millisecond) // MinSyncPeriod
		_, _, err := ask(b.namespace, "tcp", service.Spec.ClusterIP+":80")
		return err == nil
	}, limit, tick)
	s.refuses(s.machine, "tcp", own4+":80")
	require.Eventually(t, func() bool {
		c.Step(longestPause)
		_, _, err := ask(s.machine, "tcp", own4+":80")
		return err == nil
	}, limit, tick)
	require.Empty(t, machine.failures)
}
