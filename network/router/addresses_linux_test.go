package router_test

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/coxswain-dev/coxswain/network/nft"
	"github.com/coxswain-dev/coxswain/network/router"
)

// world is a machine with a router, and a client that reaches all destinations through the machine. Both have a default
// route, and the machine checks the return path of packets.
type world struct {
	machine
	client machine
	router *router.Router
}

// addresses are the addresses of a family in a world: of the machine and its client on their segment, of the machine's
// end of the cable, of a pod, and of a Service.
type addresses struct{ subnet, machine, client, cable, pod, service string }

var families = map[string]addresses{
	"IPv4": {"10.1.0.0/24", "192.0.2.1", "192.0.2.2", "10.1.0.1", "10.1.0.5", "203.0.113.9"},
	"IPv6": {"fd01::/64", "2001:db8::1", "2001:db8::2", "fd01::1", "fd01::5", "2001:db8:9::9"},
}

var v4, v6 = families["IPv4"], families["IPv6"]

func newWorld(t *testing.T) *world {
	t.Helper()
	m, client := newMachine(t), newMachine(t)
	for _, end := range []machine{m, client} {
		end.do(sendAtOnce)
	}
	segment(t, m, client)
	for i, end := range []machine{m, client} {
		end.do(func() error {
			uplink, err := netlink.LinkByName("uplink")
			if err != nil {
				return err
			}
			own, err := netlink.ParseAddr([]string{v6.machine, v6.client}[i] + "/64")
			if err != nil {
				return err
			}
			own.Flags = unix.IFA_F_NODAD
			if err := netlink.AddrAdd(uplink, own); err != nil {
				return err
			}
			for _, via := range [][]string{{v4.client, v6.client}, {v4.machine, v6.machine}}[i] {
				route := &netlink.Route{LinkIndex: uplink.Attrs().Index, Gw: net.ParseIP(via)}
				if err := netlink.RouteAdd(route); err != nil {
					return err
				}
			}
			return os.WriteFile("/proc/sys/net/ipv4/conf/all/rp_filter", []byte("1"), 0)
		})
	}
	var r *router.Router
	m.do(func() (err error) {
		r, err = router.Open(nil, router.Options{})
		return err
	})
	t.Cleanup(r.Close)
	machine{t, r.Namespace()}.do(sendAtOnce)
	m.addNode(r, "cox0", v4.subnet, v6.subnet)
	return &world{m, client, r}
}

// sendAtOnce disables IPv6 duplicate address detection, so that devices send at once.
func sendAtOnce() error {
	return os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0)
}

// standIns returns the router's ranges of stand-ins, of IPv4 and of IPv6.
func (m machine) standIns(r *router.Router) (ranges []netip.Prefix) {
	m.t.Helper()
	m.do(func() (err error) {
		ranges, err = r.StandIns()
		return err
	})
	return ranges
}

// served are addresses of Services, each with its stand-in.
type served map[string]netip.Addr

// serveAddresses serves addresses with ports, by TCP and UDP, and returns the refused ones.
func (m machine) serveAddresses(r *router.Router, all served) (refused []string) {
	m.t.Helper()
	ports := map[netip.AddrPort]netip.Addr{}
	for address, standIn := range all {
		ports[netip.MustParseAddrPort(address)] = standIn
	}
	m.do(func() error {
		rejected, err := r.ServeAddresses(map[uint8]map[netip.AddrPort]netip.Addr{unix.IPPROTO_TCP: ports,
			unix.IPPROTO_UDP: ports})
		for _, address := range rejected {
			refused = append(refused, address.String())
		}
		return err
	})
	slices.Sort(refused)
	return slices.Compact(refused)
}

// stand forwards a stand-in to a pod in the router, as a proxy does for a Service.
func stand(t *testing.T, r *router.Router, standIn netip.Addr, pod string) {
	t.Helper()
	offset, family := uint32(16), nftables.TableFamilyIPv4
	if standIn.Is6() {
		offset, family = 24, nftables.TableFamilyIPv6
	}
	require.NoError(t, nft.Once(r.Namespace(), func(change *nft.Transaction) error {
		table := change.AddTable(&nftables.Table{Name: "services", Family: family})
		chain := change.AddChain(&nftables.Chain{Name: "services", Table: table, Type: nftables.ChainTypeNAT,
			Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest})
		change.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset,
				Len: uint32(standIn.BitLen() / 8)},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: standIn.AsSlice()},
			&expr.Immediate{Register: 1, Data: netip.MustParseAddr(pod).AsSlice()},
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(family), RegAddrMin: 1},
		}})
		return change.Commit()
	}))
}

// refusedConnection is the error text of a port without a listener.
const refusedConnection = "connection refused"

func TestRouter_AnswersAtAddressesOfServices(t *testing.T) {
	t.Parallel()
	for name, a := range families {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.dropForwarded()
			w.pod(w.router, a.pod).serve("pod")
			ranges := w.standIns(w.router)
			require.Equal(t, ranges, w.standIns(w.router), "the same ranges again")
			standIn := ranges[map[string]int{"IPv4": 0, "IPv6": 1}[name]].Addr().Next()
			stand(t, w.router, standIn, a.pod)
			hostPort := func(address string) string { return net.JoinHostPort(address, "80") }
			all := served{hostPort(a.service): standIn, hostPort(a.machine): standIn}
			for range 2 { // and again
				require.Empty(t, w.serveAddresses(w.router, all))
				for _, address := range []string{a.service, a.machine} {
					require.Equal(t, "pod to "+a.client, w.client.ask(address), "the client's address is kept")
					require.Equal(t, "pod to "+a.cable, w.ask(address), "the machine sends from its end of the cable")
				}
			}
			require.Contains(t, w.askPort(a.machine, 81), refusedConnection, "another port is not served")
			require.NotContains(t, w.ask(standIn.Next().String()), "pod", "an unused stand-in is not served")

			delete(all, hostPort(a.service))
			w.serveAddresses(w.router, all)
			require.NotContains(t, w.client.ask(a.service), "pod")
			require.Equal(t, "pod to "+a.client, w.client.ask(a.machine))
			w.serveAddresses(w.router, nil)
			require.Contains(t, w.client.ask(a.machine), refusedConnection)
			require.Contains(t, w.ask(a.machine), refusedConnection)
			require.Empty(t, w.left("service-addresses"))
		})
	}
}

func TestRouter_DoesNotServeAddressesThatTheMachineNeeds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.do(func() error {
		if err := w.router.ReachServices([]netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}); err != nil {
			return err
		}
		if err := w.router.JoinPeers(router.Routes, netip.MustParseAddr(v4.machine)); err != nil {
			return err
		}
		return w.router.SetPeers([]router.Peer{{Address: netip.MustParseAddr(v4.client),
			Subnets: []netip.Prefix{netip.MustParsePrefix("10.2.0.0/24")}}})
	})
	ranges := w.standIns(w.router)
	needed := []string{"127.0.0.1", "127.5.0.1", "0.0.0.0", "0.1.2.3", "169.254.169.254", "224.0.0.1", "255.255.255.255",
		"192.0.2.255", "240.0.0.1", "10.96.0.1", "10.1.0.0", "10.1.0.1", "10.1.0.5", "10.2.0.5", v4.client, "::1", "::", "fe80::1", "ff02::1",
		"::ffff:192.0.2.1", "fd01::1", ranges[1].Addr().Next().String()}
	for _, address := range needed {
		standIn := ranges[0].Addr().Next()
		if netip.MustParseAddr(address).Is6() {
			standIn = ranges[1].Addr().Next()
		}
		hostPort := net.JoinHostPort(address, "80")
		require.Equal(t, []string{hostPort}, w.serveAddresses(w.router, served{hostPort: standIn}))
		require.Empty(t, w.left("service-addresses"))
	}
}

func TestRouter_StopsServingAddressesOfPeersThatJoinLater(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.do(func() error { return w.router.JoinPeers(router.VXLAN, netip.MustParseAddr(v4.machine)) })
	standIn := w.standIns(w.router)[0].Addr().Next()
	peer := router.Peer{Address: netip.MustParseAddr(v4.client),
		Subnets: []netip.Prefix{netip.MustParsePrefix("10.2.0.0/24")}}
	for range 2 {
		w.do(func() error { return w.router.SetPeers(nil) })
		require.Empty(t, w.serveAddresses(w.router, served{"192.0.2.2:80": standIn}))
		require.NotEmpty(t, w.left("service-addresses"))
		w.do(func() error { return w.router.SetPeers([]router.Peer{peer}) })
		require.Empty(t, w.left("service-addresses"))
	}
	w.do(func() error { return w.router.SetPeers(nil) })
	require.NotEmpty(t, w.left("service-addresses"), "addresses of a former peer are served")
}

func TestRouter_DoesNotServePortsInUse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pod(w.router, v4.pod, v6.pod).serve("pod")
	ranges := w.standIns(w.router)
	all := served{}
	for i, a := range []addresses{v4, v6} {
		standIn := ranges[i].Addr().Next()
		stand(t, w.router, standIn, a.pod)
		for _, address := range []string{a.machine, a.service} {
			all[net.JoinHostPort(address, "80")] = standIn
		}
	}
	var servers []net.Listener
	w.do(func() error {
		server, err := net.Listen("tcp", ":80") // at all addresses
		servers = append(servers, server)
		return err
	})
	own := []string{"192.0.2.1:80", "[2001:db8::1]:80"}
	require.Equal(t, own, w.serveAddresses(w.router, all))
	for i, a := range []addresses{v4, v6} {
		c, err := net.Dial("tcp", own[i])
		require.Error(t, err, "of the test's own namespace: %v", c)
		require.Equal(t, "pod to "+a.client, w.client.ask(a.service))
	}
	require.NoError(t, servers[0].Close())
	require.Empty(t, w.serveAddresses(w.router, all))
	require.Equal(t, "pod to "+v4.client, w.client.ask(v4.machine))

	var datagrams net.PacketConn
	w.do(func() (err error) {
		datagrams, err = net.ListenPacket("udp", "192.0.2.1:80")
		return err
	})
	defer datagrams.Close()
	require.Equal(t, own[:1], w.serveAddresses(w.router, all), "the UDP port is free")
	require.Equal(t, "pod to "+v4.client, w.client.ask(v4.machine), "the TCP port is free")
	w.serve("machine")
	require.Equal(t, own, w.serveAddresses(w.router, all), "a later server keeps its port, too")
	require.Equal(t, "machine to "+v4.client, w.client.ask(v4.machine))
	require.Equal(t, "machine to "+v6.machine, w.ask(v6.machine))
}

func TestRouter_DoesNotServeThePortOfVXLAN(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.do(func() error { return w.router.JoinPeers(router.VXLAN, netip.MustParseAddr(v4.machine)) })
	target := "192.0.2.1:8472"
	standIn := w.standIns(w.router)[0].Addr().Next()
	require.Equal(t, []string{target}, w.serveAddresses(w.router, served{target: standIn}))
}

func TestRouter_ServesNoAddressesAfterClose(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	standIn := w.standIns(w.router)[0].Addr().Next()
	w.serveAddresses(w.router, served{"203.0.113.9:80": standIn})
	w.do(func() error {
		w.router.Close()
		_, err := w.router.ServeAddresses(map[uint8]map[netip.AddrPort]netip.Addr{
			unix.IPPROTO_TCP: {netip.MustParseAddrPort("203.0.113.9:80"): standIn}})
		require.ErrorIs(t, err, os.ErrClosed)
		_, err = w.router.StandIns()
		require.ErrorIs(t, err, os.ErrClosed)
		return nil
	})
	require.Empty(t, w.left("service-addresses"))
}

func TestRouter_PrefersNodePortsAndHostPortsToServiceAddresses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pod, other := w.pod(w.router, v4.pod), w.pod(w.router, "10.1.0.6")
	pod.serveOn(30080, func(netip.Addr) string { return "service" })
	pod.serveOn(8000, func(netip.Addr) string { return "service" })
	other.serve("host port")
	machine{t, w.router.Namespace()}.serveOn(30080, func(netip.Addr) string { return "node port" })
	standIn := w.standIns(w.router)[0].Addr().Next()
	stand(t, w.router, standIn, v4.pod)
	w.serveAddresses(w.router, served{"192.0.2.1:30080": standIn, "192.0.2.1:8000": standIn})
	require.Equal(t, "service", w.client.askPort(v4.machine, 30080))
	require.Equal(t, "service", w.client.askPort(v4.machine, 8000))
	w.do(func() error { return w.router.ServeNodePorts(router.Ports{First: 30000, Last: 30080}) })
	w.serveHostPorts(w.router, "10.1.0.6", hostPort("", 8000, 80))
	for _, from := range []machine{w.client, w.machine} {
		require.Equal(t, "node port", from.askPort(v4.machine, 30080))
		require.Contains(t, from.askPort(v4.machine, 8000), "host port")
	}
}

// A UDP flow follows its address when that changes.
func TestRouter_EndsUDPFlowsToChangedAddresses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	standIns := w.standIns(w.router)[0]
	senders := map[string]<-chan string{}
	for i, pod := range []string{"10.1.0.5", "10.1.0.6"} {
		senders[pod] = w.pod(w.router, pod).senders(53)
		address := standIns.Addr()
		for range i + 1 {
			address = address.Next()
		}
		stand(t, w.router, address, pod)
	}
	first, second := standIns.Addr().Next(), standIns.Addr().Next().Next()
	var flow net.Conn
	w.client.do(func() (err error) {
		flow, err = net.Dial("udp", "192.0.2.1:53")
		return err
	})
	defer flow.Close()
	receives := func(from <-chan string) {
		t.Helper()
		require.Eventually(t, func() bool {
			_, _ = flow.Write([]byte("hello")) // the previous answer may be an ICMP error
			select {
			case sender := <-from:
				return sender == v4.client
			case <-time.After(step):
				return false
			}
		}, patience, step)
	}
	_, err := flow.Write([]byte("hello")) // before the Service exists
	require.NoError(t, err)
	w.serveAddresses(w.router, served{"192.0.2.1:53": first})
	receives(senders["10.1.0.5"])
	w.serveAddresses(w.router, served{"192.0.2.1:53": second})
	receives(senders["10.1.0.6"])
	w.serveAddresses(w.router, nil)
	receives(w.senders(53))
}

func TestRouter_KeepsServiceAddressesAfterAKill(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pod(w.router, v4.pod).serve("pod")
	ranges := w.standIns(w.router)
	standIn := ranges[0].Addr().Next()
	stand(t, w.router, standIn, v4.pod)
	w.serveAddresses(w.router, served{"203.0.113.9:80": standIn, "192.0.2.1:80": standIn})

	again := w.reopen(w.router) // nothing was closed, as after a kill
	w.addNode(again, "cox0", v4.subnet, v6.subnet)
	require.Equal(t, "pod to "+v4.client, w.client.ask(v4.machine), "served until the first call of ServeAddresses")
	require.Equal(t, ranges, w.standIns(again))
	w.serveAddresses(again, served{"192.0.2.1:80": standIn})
	require.Equal(t, "pod to "+v4.client, w.client.ask(v4.machine))
	require.NotContains(t, w.client.ask(v4.service), "pod", "the Service was deleted meanwhile")

	third := w.reopen(again)
	w.addNode(third, "cox0", v4.subnet, v6.subnet)
	w.serveAddresses(third, nil) // all Services were deleted meanwhile
	require.Contains(t, w.client.ask(v4.machine), refusedConnection)
	require.Empty(t, w.left("service-addresses"))
}

func TestRouter_KeepsServiceAddressesOfOtherRouters(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	second := w.machine.router("cox1", "10.2.0.0/24")
	ranges := [][]netip.Prefix{w.standIns(w.router), w.standIns(second)}
	require.False(t, ranges[0][0].Overlaps(ranges[1][0]))
	serve := func(r *router.Router, standIn netip.Addr, pod, word string, at ...string) {
		w.pod(r, pod).serve(word)
		stand(t, r, standIn, pod)
		all := served{}
		for _, a := range at {
			all[a] = standIn
		}
		require.Empty(t, w.serveAddresses(r, all))
	}
	serve(w.router, ranges[0][0].Addr().Next(), "10.1.0.5", "first", "203.0.113.9:80", "192.0.2.1:80")
	serve(second, ranges[1][0].Addr().Next(), "10.2.0.5", "second", "203.0.113.10:80", "192.0.2.1:80")
	require.Equal(t, "first to "+v4.client, w.client.ask("203.0.113.9"))
	require.Equal(t, "second to "+v4.client, w.client.ask("203.0.113.10"))
	require.Equal(t, "second to "+v4.client, w.client.ask(v4.machine), "the kernel evaluates the later chain first")

	require.NoError(t, second.DisconnectPod(netip.MustParseAddr("10.2.0.5")))
	w.do(func() error {
		second.Close()
		return nil
	})
	require.Equal(t, "first to "+v4.client, w.client.ask("203.0.113.9"))
	require.Equal(t, "first to "+v4.client, w.client.ask(v4.machine))
	require.NotContains(t, w.client.ask("203.0.113.10"), "second")
	require.Empty(t, w.left("10.2.0."))
	require.Len(t, w.left("service-addresses-pods-10.1.0."), 2, "a map and its chain")
}

func TestRemove_DeletesServiceAddressesOfDeadRouters(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dead := w.machine.router("cox1", "10.2.0.0/24")
	for _, r := range []*router.Router{w.router, dead} {
		standIn := w.standIns(r)[0].Addr().Next()
		w.serveAddresses(r, served{"203.0.113.9:80": standIn, "192.0.2.1:80": standIn})
	}
	w.do(func() error { return router.Remove(dead.Namespace()) })
	require.Empty(t, append(w.left("10.2.0."), w.left("242.0.0.0")...))
	require.NotEmpty(t, w.left("service-addresses-pods-10.1.0."))
	require.NotEmpty(t, w.left("240.0.0.0"))

	w.do(func() error { return router.Remove(w.router.Namespace()) })
	w.do(func() error { return router.Remove(nil) }) // again
	for _, text := range []string{"cox", "service-addresses", "240.0.0.0", "fd63:6f78:7377:"} {
		require.Empty(t, w.left(text))
	}
}

func TestRouter_ReservesNoStandInsThatAreRoutedElsewhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.do(func() error {
		uplink, err := netlink.LinkByName("uplink")
		if err != nil {
			return err
		}
		for i := range 6 {
			destination := &net.IPNet{IP: net.IPv4(byte(240+2*i), 7, 0, 0), Mask: net.CIDRMask(16, 32)}
			err = errors.Join(err, netlink.RouteAdd(&netlink.Route{LinkIndex: uplink.Attrs().Index, Dst: destination}))
		}
		return err
	})
	require.Equal(t, "252.0.0.0/7", w.standIns(w.router)[0].String())
	second := w.machine.router("cox1", "10.2.0.0/24")
	w.do(func() error {
		_, err := second.StandIns()
		require.ErrorContains(t, err, "240.0.0.0/7")
		_, err = second.ServeAddresses(nil)
		return err
	})
	require.True(t, slices.ContainsFunc(w.left("252."), func(name string) bool { return strings.HasPrefix(name, "252.") }))
}
