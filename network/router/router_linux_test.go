package router_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/coxswain-dev/coxswain/network/netns"
	"github.com/coxswain-dev/coxswain/network/nft"
	"github.com/coxswain-dev/coxswain/network/router"
)

const (
	patience = 20 * time.Second
	step     = 5 * time.Millisecond
)

// machine is a network namespace that stands for a machine, so that tests do not interfere.
type machine struct {
	t *testing.T
	*os.File
}

func newMachine(t *testing.T) machine {
	t.Helper()
	f, err := netns.New()
	if errors.Is(err, fs.ErrPermission) {
		t.Skipf("SKIPPED: pods' networks take root, and are not tested here: %v", err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	m := machine{t, f}
	m.do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	})
	return m
}

func (m machine) do(do func() error) {
	m.t.Helper()
	require.NoError(m.t, netns.Do(m.File, do))
}

// router creates a router on this machine, with the subnets of a Node.
func (m machine) router(device string, subnets ...string) *router.Router {
	m.t.Helper()
	var r *router.Router
	m.do(func() (err error) {
		r, err = router.Open(nil, router.Options{})
		return err
	})
	m.t.Cleanup(r.Close)
	m.addNode(r, device, subnets...)
	return r
}

func (m machine) addNode(r *router.Router, device string, subnets ...string) {
	m.t.Helper()
	var all []netip.Prefix
	for _, s := range subnets {
		all = append(all, netip.MustParsePrefix(s))
	}
	m.do(func() error { return r.AddNode(device, all...) })
}

// pod creates a namespace that a router connects.
func (m machine) pod(r *router.Router, addresses ...string) machine {
	m.t.Helper()
	p := newMachine(m.t)
	var all []netip.Addr
	for _, a := range addresses {
		all = append(all, netip.MustParseAddr(a))
	}
	m.do(func() error { return r.ConnectPod(p.File, all...) })
	require.Empty(m.t, p.silent(), "the first packet of a pod arrives")
	return p
}

// silent returns the devices that lead to another namespace and cannot send yet. Unlike reading one device, a list does
// not speed up the kernel's link watch.
func (m machine) silent() (names []string) {
	m.t.Helper()
	m.do(func() error {
		devices, err := netlink.LinkList()
		for _, d := range devices {
			if d.Type() == "veth" && d.Attrs().OperState != netlink.OperUp {
				names = append(names, d.Attrs().Name)
			}
		}
		return err
	})
	return names
}

// serve answers every TCP connection to port 80 with a word and the client's address.
func (m machine) serve(word string) {
	m.t.Helper()
	m.serveOn(80, func(from netip.Addr) string { return word + " to " + from.String() })
}

func (m machine) serveOn(port uint16, answer func(from netip.Addr) string) {
	m.t.Helper()
	var l net.Listener
	m.do(func() (err error) {
		l, err = net.Listen("tcp", fmt.Sprint(":", port))
		return err
	})
	m.t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			from := conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
			_, _ = io.WriteString(conn, answer(from))
			_ = conn.Close()
		}
	}()
}

// ask connects to port 80 of an address, and returns the answer or the text of the error.
func (m machine) ask(address string) string {
	m.t.Helper()
	return m.askPort(address, 80)
}

func (m machine) askPort(address string, port uint16) string {
	m.t.Helper()
	var text string
	m.do(func() error {
		dialer := net.Dialer{Timeout: 2 * time.Second}
		conn, err := dialer.DialContext(context.Background(), "tcp", net.JoinHostPort(address, fmt.Sprint(port)))
		if err != nil {
			text = err.Error()
			return nil
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(patience))
		body, err := io.ReadAll(conn)
		text = string(body)
		return err
	})
	return text
}

func (m machine) reaches(address, answer string) {
	m.t.Helper()
	require.Eventually(m.t, func() bool { return m.ask(address) == answer }, patience, step, "%s: %s, got %s", address,
		answer, m.ask(address))
}

func TestRouter_ConnectsPodsWithEachOtherAndTheMachine(t *testing.T) {
	t.Parallel()
	for _, family := range []struct{ name, subnet, other, web, client, elsewhere, machine, nobody string }{
		{"IPv4", "10.1.0.0/24", "10.1.1.0/24", "10.1.0.5", "10.1.0.6", "10.1.1.5", "10.1.0.1", "10.1.0.77"},
		{"IPv6", "fd00:1::/64", "fd00:2::/64", "fd00:1::5", "fd00:1::6", "fd00:2::5", "fd00:1::1", "fd00:1::77"},
	} {
		t.Run(family.name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			r := m.router("cox0", family.subnet)
			m.addNode(r, "cox1", family.other)
			m.addNode(r, "cox0", family.subnet) // again
			web, client := m.pod(r, family.web), m.pod(r, family.client)
			elsewhere := m.pod(r, family.elsewhere)
			m.do(func() error { return r.ConnectPod(web.File, netip.MustParseAddr(family.web)) }) // again
			web.serve("web")
			m.serve("machine")
			client.reaches(family.web, "web to "+family.client)
			elsewhere.reaches(family.web, "web to "+family.elsewhere)
			web.reaches(family.web, "web to "+family.web)
			m.reaches(family.web, "web to "+family.machine)
			client.reaches(family.machine, "machine to "+family.client)
			require.Regexp(t, "unreachable|no route to host", client.ask(family.nobody))
			require.Regexp(t, "unreachable|no route to host", m.ask(family.nobody))
		})
	}
}

func TestRouter_LivesAsLongAsItIsOpen(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	r := m.router("cox0", "10.1.0.0/24")
	web := m.pod(r, "10.1.0.5")
	web.serve("web")
	file, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", r.Namespace().Fd()))
	require.NoError(t, err)
	r.Close() // as after a kill
	m.reaches("10.1.0.5", "web to 10.1.0.1")

	var again *router.Router
	m.do(func() (err error) {
		again, err = router.Open(file, router.Options{})
		return err
	})
	m.addNode(again, "cox0", "10.1.0.0/24")
	m.reaches("10.1.0.5", "web to 10.1.0.1")
	client := m.pod(again, "10.1.0.6")
	client.reaches("10.1.0.5", "web to 10.1.0.6")

	again.Close()
	require.Eventually(t, func() bool {
		deleted := false
		m.do(func() error {
			_, err := net.InterfaceByName("cox0")
			deleted = err != nil
			return nil
		})
		return deleted
	}, patience, step, "a router that no process has open is deleted")
}

func TestRouter_DropsPacketsWithAnAddressOfAnotherPod(t *testing.T) {
	t.Parallel()
	for _, family := range []struct{ name, subnet, web, thief, victim string }{
		{"IPv4", "10.1.0.0/24", "10.1.0.5", "10.1.0.6", "10.1.0.7"},
		{"IPv6", "fd00:1::/64", "fd00:1::5", "fd00:1::6", "fd00:1::7"},
	} {
		t.Run(family.name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			r := m.router("cox0", family.subnet)
			web, thief := m.pod(r, family.web), m.pod(r, family.thief)
			m.pod(r, family.victim)
			senders := web.senders(53)
			thief.sendAs(family.thief, family.web, 53)
			require.Equal(t, family.thief, <-senders)
			thief.do(func() error {
				eth0, err := netlink.LinkByName(router.PodDevice)
				if err != nil {
					return err
				}
				victim := netip.MustParseAddr(family.victim)
				return netlink.AddrAdd(eth0, &netlink.Addr{Flags: unix.IFA_F_NODAD, IPNet: &net.IPNet{
					IP: victim.AsSlice(), Mask: net.CIDRMask(victim.BitLen(), victim.BitLen())}})
			})
			thief.sendAs(family.victim, family.web, 53)
			thief.sendAs(family.thief, family.web, 53)
			require.Equal(t, family.thief, <-senders, "the earlier, forged packet is dropped")
		})
	}
}

// senders returns a channel with the source addresses of UDP packets to a port.
func (m machine) senders(port int) <-chan string {
	m.t.Helper()
	var server net.PacketConn
	m.do(func() (err error) {
		server, err = net.ListenPacket("udp", fmt.Sprint(":", port))
		return err
	})
	m.t.Cleanup(func() { _ = server.Close() })
	from := make(chan string, 10)
	go func() {
		defer close(from)
		for {
			_, sender, err := server.ReadFrom(make([]byte, 100))
			if err != nil {
				return
			}
			from <- sender.(*net.UDPAddr).IP.String()
		}
	}()
	return from
}

func (m machine) sendAs(source, to string, port int) {
	m.t.Helper()
	m.do(func() error {
		conn, err := net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP(source)},
			&net.UDPAddr{IP: net.ParseIP(to), Port: port})
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write([]byte("hello"))
		return err
	})
}

func TestRouter_ReplacesRemainsOfEarlierPodsAndAgents(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	r := m.router("cox0", "10.1.0.0/24")
	before := m.pod(r, "10.1.0.5")
	before.serve("before")
	now := m.pod(r, "10.1.0.5")
	now.serve("now")
	m.reaches("10.1.0.5", "now to 10.1.0.1")

	m.addNode(m.router("coxother", "10.2.0.0/24"), "cox0", "10.1.0.0/24") // an agent with another router
	m.do(func() error {
		require.ErrorContains(t, r.AddNode("cox2", netip.MustParsePrefix("10.2.0.0/16")), "has the address")
		require.ErrorContains(t, r.AddNode("cox2", netip.MustParsePrefix("10.3.0.0/32")), "no subnet")
		require.ErrorContains(t, r.AddNode("cox2", netip.Prefix{}), "no subnet")
		require.ErrorContains(t, r.ConnectPod(now.File), "without an address")
		return nil
	})
}

// segment joins machines by a bridge in a namespace of its own. The machines are 192.0.2.1, 192.0.2.2, …
func segment(t *testing.T, machines ...machine) machine {
	t.Helper()
	between := newMachine(t)
	between.do(func() error {
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "segment"}}
		if err := netlink.LinkAdd(bridge); err != nil {
			return err
		}
		for i, m := range machines {
			name := fmt.Sprint("machine", i)
			cable := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, MasterIndex: bridge.Index},
				PeerName: "uplink", PeerNamespace: netlink.NsFd(m.Fd())}
			if err := netlink.LinkAdd(cable); err != nil {
				return err
			}
			if err := netlink.LinkSetUp(cable); err != nil {
				return err
			}
		}
		return netlink.LinkSetUp(bridge)
	})
	for i, m := range machines {
		m.do(func() error {
			uplink, err := netlink.LinkByName("uplink")
			if err != nil {
				return err
			}
			address, err := netlink.ParseAddr(fmt.Sprintf("192.0.2.%d/24", i+1))
			if err != nil {
				return err
			}
			if err := netlink.AddrAdd(uplink, address); err != nil {
				return err
			}
			return netlink.LinkSetUp(uplink)
		})
	}
	return between
}

func TestRouter_ReachesPodsOfPeersUntilTheyLeave(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{router.VXLAN, router.Routes} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			machines := []machine{newMachine(t), newMachine(t), newMachine(t)}
			segment(t, machines...)
			var routers []*router.Router
			var pods []machine
			var all []router.Peer
			for i, m := range machines {
				subnet := fmt.Sprintf("10.%d.0.0/24", i+1)
				r := m.router("cox0", subnet)
				address := netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})
				m.do(func() error { return r.JoinPeers(mode, address) })
				pod := m.pod(r, fmt.Sprintf("10.%d.0.5", i+1))
				pod.serve(fmt.Sprint("pod ", i))
				routers, pods = append(routers, r), append(pods, pod)
				all = append(all, router.Peer{Address: address, Subnets: []netip.Prefix{netip.MustParsePrefix(subnet)}})
			}
			others := func(i int) (peers []router.Peer) {
				for j, p := range all {
					if j != i {
						peers = append(peers, p)
					}
				}
				return peers
			}
			for i, m := range machines {
				m.do(func() error { return routers[i].SetPeers(others(i)) })
				m.do(func() error { return routers[i].SetPeers(others(i)) }) // again
			}
			for i, p := range pods {
				for j := range pods {
					p.reaches(fmt.Sprintf("10.%d.0.5", j+1), fmt.Sprintf("pod %d to 10.%d.0.5", j, i+1))
				}
			}
			machines[0].reaches("10.2.0.5", "pod 1 to "+map[string]string{
				router.VXLAN: "10.1.0.1", router.Routes: "192.0.2.1"}[mode])
			machines[0].do(func() error {
				return routers[0].ReachServices([]netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")})
			})
			lead(t, routers[0], "10.96.0.1", "10.2.0.5")
			machines[0].reaches("10.96.0.1", "pod 1 to "+map[string]string{
				router.VXLAN: "10.1.0.1", router.Routes: "10.1.0.0"}[mode])
			machines[0].do(func() error { return routers[0].SetPeers(all[1:2]) })
			require.NotContains(t, pods[0].ask("10.3.0.5"), "pod", "routes to a former peer are removed")
			pods[0].reaches("10.2.0.5", "pod 1 to 10.1.0.5")
			large := strings.Repeat("x", 100_000)
			pods[1].serveOn(81, func(netip.Addr) string { return large })
			require.Equal(t, large, pods[0].askPort("10.2.0.5", 81), "packets of any size arrive")
		})
	}
}

// lead forwards an address to a pod, as a proxy does in the router for a Service.
func lead(t *testing.T, r *router.Router, service, pod string) {
	t.Helper()
	conn, err := nft.Open(r.Namespace())
	require.NoError(t, err)
	defer conn.Close()
	change, err := conn.Begin()
	require.NoError(t, err)
	table := change.AddTable(&nftables.Table{Name: "services", Family: nftables.TableFamilyIPv4})
	chain := change.AddChain(&nftables.Chain{Name: "services", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest})
	change.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: netip.MustParseAddr(service).AsSlice()},
		&expr.Immediate{Register: 1, Data: netip.MustParseAddr(pod).AsSlice()},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(nftables.TableFamilyIPv4), RegAddrMin: 1},
	}})
	require.NoError(t, change.Commit())
}

func TestRouter_MasqueradesPodsIfEnabled(t *testing.T) {
	t.Parallel()
	m, internet := newMachine(t), newMachine(t)
	segment(t, m, internet)
	internet.serve("internet")
	r := m.router("cox0", "10.1.0.0/24")
	pod := m.pod(r, "10.1.0.5")
	require.NotContains(t, pod.ask("192.0.2.2"), "internet to")
	m.do(r.Masquerade)
	m.do(r.Masquerade) // again
	pod.reaches("192.0.2.2", "internet to 192.0.2.1")
	m.addNode(r, "cox1", "10.2.0.0/24")
	m.pod(r, "10.2.0.5").reaches("192.0.2.2", "internet to 192.0.2.1")
	pod.serve("pod")
	m.reaches("10.1.0.5", "pod to 10.1.0.1")
}

func TestRouter_AnswersAtNodePortsOfTheMachine(t *testing.T) {
	t.Parallel()
	m, other := newMachine(t), newMachine(t)
	segment(t, m, other)
	r := m.router("cox0", "10.1.0.0/24", "fd01::/64")
	m.serveOn(30080, func(netip.Addr) string { return "the machine" })
	inside := machine{t, r.Namespace()}
	inside.serveOn(30080, func(from netip.Addr) string { return "the router to " + from.String() })
	require.Equal(t, "the machine", other.askPort("192.0.2.1", 30080))
	ports := router.Ports{First: 30000, Last: 30080}
	m.do(func() error { return r.ServeNodePorts(ports) })
	m.do(func() error { return r.ServeNodePorts(ports) }) // again

	require.Equal(t, "the router to 192.0.2.2", other.askPort("192.0.2.1", 30080), "the client's address is kept")
	require.Equal(t, "the router to 192.0.2.1", m.askPort("192.0.2.1", 30080), "the machine itself is a client")
	require.Equal(t, "the router to fd01::1", m.askPort("fd01::1", 30080))
	require.Equal(t, "the machine", m.askPort("127.0.0.1", 30080), "loopback stays on the machine")
	m.serveOn(30081, func(netip.Addr) string { return "the machine" })
	require.Equal(t, "the machine", other.askPort("192.0.2.1", 30081), "a port outside the range")
}
