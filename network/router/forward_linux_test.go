package router_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/coxswain-dev/coxswain/network/nft"
	"github.com/coxswain-dev/coxswain/network/router"
)

// dropForwarded creates the chain FORWARD of iptables like Docker.
func (m machine) dropForwarded() {
	m.t.Helper()
	m.do(func() error {
		return nft.Once(nil, func(t *nft.Transaction) error {
			table, policy := t.AddTable(&nftables.Table{Name: "filter", Family: nftables.TableFamilyIPv4}),
				nftables.ChainPolicyDrop
			t.AddChain(&nftables.Chain{Name: "FORWARD", Table: table, Type: nftables.ChainTypeFilter,
				Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter, Policy: &policy})
			return t.Commit()
		})
	})
}

func TestRouter_PassesFiltersThatDropForwardedPackets(t *testing.T) {
	t.Parallel()
	m, other := newMachine(t), newMachine(t)
	segment(t, m, other)
	m.dropForwarded()
	r := m.router("cox0", "10.1.0.0/24")
	pod := m.pod(r, "10.1.0.5")
	other.serve("other")
	pod.serve("pod")
	m.do(r.Masquerade)
	m.do(r.Masquerade) // again
	pod.reaches("192.0.2.2", "other to 192.0.2.1")
	m.serveHostPorts(r, "10.1.0.5", hostPort("", 8000, 80))
	require.Equal(t, "pod to 192.0.2.2", other.askPort("192.0.2.1", 8000))
	machine{t, r.Namespace()}.serveOn(30080, func(netip.Addr) string { return "node port" })
	m.do(func() error { return r.ServeNodePorts(router.Ports{First: 30000, Last: 30080}) })
	require.Equal(t, "node port", other.askPort("192.0.2.1", 30080))

	m.do(router.RemoveMachine)
	m.do(router.RemoveMachine) // again
	require.NotContains(t, pod.ask("192.0.2.2"), "other to")
	require.NotContains(t, other.askPort("192.0.2.1", 8000), "pod")
	m.do(func() error {
		return nft.Once(nil, func(t *nft.Transaction) error {
			chains, err := t.ListChainsOfTableFamily(nftables.TableFamilyIPv4)
			if err != nil {
				return err
			}
			for _, c := range chains {
				rules, err := t.GetRules(c.Table, c)
				if err != nil || c.Name != "FORWARD" || len(rules) > 0 {
					return fmt.Errorf("left: %s with %d rules: %w", c.Name, len(rules), err)
				}
			}
			return nil
		})
	})
}

func TestRouter_DropsForgedPodAddressesFromOutside(t *testing.T) {
	t.Parallel()
	m, outsider := newMachine(t), newMachine(t)
	segment(t, m, outsider)
	r := m.router("cox0", "10.1.0.0/24")
	m.do(r.Masquerade)
	senders := m.pod(r, "10.1.0.5").senders(53)
	m.pod(r, "10.1.0.9")
	outsider.do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		address := &net.IPNet{IP: net.IPv4(10, 1, 0, 9), Mask: net.CIDRMask(32, 32)}
		if err := netlink.AddrAdd(lo, &netlink.Addr{IPNet: address}); err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{Gw: net.IPv4(192, 0, 2, 1),
			Dst: &net.IPNet{IP: net.IPv4(10, 1, 0, 0), Mask: net.CIDRMask(24, 32)}})
	})
	outsider.sendAs("10.1.0.9", "10.1.0.5", 53)
	outsider.sendAs("192.0.2.2", "10.1.0.5", 53)
	require.Equal(t, "192.0.2.2", <-senders)
}

func TestRouter_DoesNotAffectOtherRouters(t *testing.T) {
	t.Parallel()
	m, other := newMachine(t), newMachine(t)
	segment(t, m, other)
	ports, services := router.Ports{First: 30000, Last: 30080}, []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
	join := func(word, device, subnet, pod string) *router.Router {
		r := m.router(device, subnet)
		m.pod(r, pod).serve(word)
		machine{t, r.Namespace()}.serveOn(30080, func(netip.Addr) string { return word })
		m.do(func() error { return r.ReachServices(services) })
		m.do(func() error { return r.ServeNodePorts(ports) })
		lead(t, r, "10.96.0.1", pod)
		return r
	}
	join("first", "cox0", "10.1.0.0/24", "10.1.0.5")
	second := join("second", "cox1", "10.2.0.0/24", "10.2.0.5")
	require.Equal(t, "first to 10.1.0.1", m.ask("10.96.0.1"))
	require.Equal(t, "second", other.askPort("192.0.2.1", 30080), "the kernel evaluates the later chain first")
	require.NoError(t, second.DisconnectPod(netip.MustParseAddr("10.2.0.5")))
	m.do(func() error {
		second.Close()
		return nil
	})
	require.Equal(t, "first to 10.1.0.1", m.ask("10.96.0.1"))
	require.Equal(t, "first", other.askPort("192.0.2.1", 30080))
	m.do(func() error {
		return nft.Once(nil, func(t *nft.Transaction) error {
			chains, err := t.ListChainsOfTableFamily(nftables.TableFamilyIPv4)
			for _, c := range chains {
				if strings.Contains(c.Name, "10.2.0.0") {
					err = errors.Join(err, fmt.Errorf("left: %s", c.Name))
				}
			}
			return err
		})
	})
}

// left returns the names of the machine's devices, chains, sets and routes of ours that contain a text.
func (m machine) left(text string) (names []string) {
	m.t.Helper()
	m.do(func() error {
		devices, err := netlink.LinkList()
		if err != nil {
			return err
		}
		for _, d := range devices {
			names = append(names, d.Attrs().Name)
		}
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			routes, err := netlink.RouteList(nil, family)
			if err != nil {
				return err
			}
			for _, r := range routes {
				names = append(names, r.Dst.String())
			}
		}
		filters, err := filterNames()
		names = append(names, filters...)
		return err
	})
	return slices.DeleteFunc(names, func(name string) bool { return !strings.Contains(name, text) })
}

// filterNames returns the names of the chains and sets of a packet filter.
func filterNames() (names []string, err error) {
	err = nft.Once(nil, func(t *nft.Transaction) error {
		chains, err := t.ListChains()
		if err != nil {
			return err
		}
		for _, c := range chains {
			names = append(names, c.Name)
		}
		tables, err := t.ListTables()
		if err != nil {
			return err
		}
		for _, table := range tables {
			sets, err := t.GetSets(table)
			if err != nil {
				return err
			}
			for _, s := range sets {
				names = append(names, s.Name)
			}
		}
		return nil
	})
	return names, err
}

func TestRemove_DeletesOneRouterCompletely(t *testing.T) {
	t.Parallel()
	m, other := newMachine(t), newMachine(t)
	segment(t, m, other)
	m.dropForwarded()
	join := func(device, subnet, pod string, port uint16) *router.Router {
		r := m.router(device, subnet)
		m.pod(r, pod).serve(device)
		m.do(r.Masquerade)
		m.serveHostPorts(r, pod, hostPort("", port, 80))
		m.do(func() error { return r.ServeNodePorts(router.Ports{First: 30000, Last: 30080}) })
		return r
	}
	first, second := join("cox0", "10.1.0.0/24", "10.1.0.5", 8000), join("cox1", "10.2.0.0/24", "10.2.0.5", 8001)
	m.do(func() error { return second.JoinPeers(router.VXLAN, netip.MustParseAddr("192.0.2.1")) })
	m.serveOn(8001, func(netip.Addr) string { return "machine" })
	require.Equal(t, "cox1 to 192.0.2.2", other.askPort("192.0.2.1", 8001))

	m.do(func() error { return router.Remove(second.Namespace()) })
	require.Empty(t, append(m.left("10.2.0."), m.left("cox1")...))
	require.Equal(t, "machine", other.askPort("192.0.2.1", 8001), "the host port is free again")
	require.Equal(t, "cox0 to 192.0.2.2", other.askPort("192.0.2.1", 8000))
	require.NotEmpty(t, m.left("node-ports-pods-10.1.0."))

	m.do(func() error { return first.JoinPeers(router.Routes, netip.MustParseAddr("192.0.2.1")) })
	m.do(func() error {
		return first.SetPeers([]router.Peer{{Address: netip.MustParseAddr("192.0.2.2"),
			Subnets: []netip.Prefix{netip.MustParsePrefix("10.3.0.0/24")}}})
	})
	require.NotEmpty(t, m.left("10.3.0."))
	m.do(func() error { return router.Remove(first.Namespace()) })
	m.do(func() error { return router.Remove(nil) }) // again
	for _, text := range []string{"cox", "10.1.0.", "10.3.0.", "-p", "vxlan"} {
		require.Empty(t, m.left(text))
	}
	require.Equal(t, []string{"FORWARD"}, m.left("FORWARD"), "chains of other programs stay")
}
