package policy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/coxswain-dev/coxswain/network/netns"
	"github.com/coxswain-dev/coxswain/network/nft"
)

// lab is a machine: a network namespace that routes between other ones, the pods, each on its own cable.
type lab struct {
	testing.TB
	router *os.File
	pods   map[netip.Addr]*os.File
}

// The router's own addresses.
var (
	routerV4 = netip.MustParseAddr("10.244.0.0")
	routerV6 = netip.MustParseAddr("fd00:244::")
)

func namespaceFor(tb testing.TB) *os.File {
	tb.Helper()
	f, err := netns.New()
	if err == nil {
		err = nft.Supported(f)
	}
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, errors.ErrUnsupported) {
		tb.Skipf("SKIPPED: network namespaces and nftables take root and a kernel that has them: %v", err)
	}
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = f.Close() })
	return f
}

func newLab(tb testing.TB) *lab {
	l := &lab{TB: tb, router: namespaceFor(tb), pods: map[netip.Addr]*os.File{}}
	l.in(l.router, func() error {
		for _, name := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
			if err := os.WriteFile("/proc/sys/net/"+name, []byte("1"), 0); err != nil {
				return err
			}
		}
		return up("lo", routerV4, routerV6)
	})
	return l
}

func (l *lab) in(namespace *os.File, do func() error) {
	l.Helper()
	require.NoError(l, netns.Do(namespace, do))
}

// up adds addresses to a device, and brings it up.
func up(device string, addresses ...netip.Addr) error {
	d, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	for _, a := range addresses {
		address := &netlink.Addr{IPNet: hostNet(a), Flags: unix.IFA_F_NODAD}
		if err := netlink.AddrAdd(d, address); err != nil {
			return fmt.Errorf("%s: %w", a, err)
		}
	}
	return netlink.LinkSetUp(d)
}

func hostNet(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

// pod creates a pod with an address of each family, both ending in a number.
func (l *lab) pod(number byte) (v4, v6 netip.Addr) {
	l.Helper()
	v4 = netip.AddrFrom4([4]byte{10, 244, 0, number})
	v6 = netip.MustParseAddr(fmt.Sprintf("fd00:244::%x", number))
	namespace, far := namespaceFor(l), fmt.Sprint("pod", number)
	l.pods[v4], l.pods[v6] = namespace, namespace
	l.in(l.router, func() error {
		cable := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: far}, PeerName: "eth0",
			PeerNamespace: netlink.NsFd(int(namespace.Fd()))}
		if err := netlink.LinkAdd(cable); err != nil {
			return err
		}
		return up(far)
	})
	l.in(namespace, func() error {
		if err := errors.Join(up("lo"), up("eth0", v4, v6)); err != nil {
			return err
		}
		return defaultRoutes("eth0")
	})
	l.in(l.router, func() error {
		d, err := netlink.LinkByName(far)
		if err != nil {
			return err
		}
		return errors.Join(netlink.RouteAdd(&netlink.Route{LinkIndex: d.Attrs().Index, Dst: hostNet(v4)}),
			netlink.AddrAdd(d, &netlink.Addr{IPNet: hostNet(nextHopV4)}),
			netlink.AddrAdd(d, &netlink.Addr{IPNet: hostNet(nextHopV6), Flags: unix.IFA_F_NODAD}),
			netlink.RouteAdd(&netlink.Route{LinkIndex: d.Attrs().Index, Dst: hostNet(v6)}))
	})
	return v4, v6
}

// The router's addresses on every cable.
var (
	nextHopV4 = netip.MustParseAddr("169.254.0.1")
	nextHopV6 = netip.MustParseAddr("fe80::1")
)

func defaultRoutes(device string) error {
	d, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	onLink := func(a netip.Addr) *netlink.Route {
		return &netlink.Route{LinkIndex: d.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: hostNet(a)}
	}
	v4 := &netlink.Route{LinkIndex: d.Attrs().Index, Gw: nextHopV4.AsSlice()}
	v6 := &netlink.Route{LinkIndex: d.Attrs().Index, Gw: nextHopV6.AsSlice()}
	return errors.Join(netlink.RouteAdd(onLink(nextHopV4)), netlink.RouteAdd(v4), netlink.RouteAdd(v6))
}

// namespaceOf returns the namespace with an address.
func (l *lab) namespaceOf(a netip.Addr) *os.File {
	if pod := l.pods[a]; pod != nil {
		return pod
	}
	return l.router
}

// serve echoes messages at ports of an address, by TCP and UDP.
func (l *lab) serve(address netip.Addr, ports ...uint16) {
	l.Helper()
	l.in(l.namespaceOf(address), func() error {
		for _, port := range ports {
			target := netip.AddrPortFrom(address, port)
			listener, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(target))
			if err != nil {
				return err
			}
			l.Cleanup(func() { _ = listener.Close() })
			go echoTCP(listener)
			packets, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(target))
			if err != nil {
				return err
			}
			l.Cleanup(func() { _ = packets.Close() })
			go echoUDP(packets)
		}
		return nil
	})
}

func echoTCP(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			_, _ = io.Copy(conn, conn)
			_ = conn.Close()
		}()
	}
}

func echoUDP(conn *net.UDPConn) {
	buffer := make([]byte, 64)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buffer)
		if err != nil {
			return
		}
		_, _ = conn.WriteToUDPAddrPort(buffer[:n], from)
	}
}

// connect connects two addresses.
func (l *lab) connect(network string, from netip.Addr, to netip.AddrPort, within time.Duration) (net.Conn, error) {
	var conn net.Conn
	err := netns.Do(l.namespaceOf(from), func() (err error) {
		d := net.Dialer{Timeout: within, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))}
		if network == "udp" {
			d.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
		}
		conn, err = d.DialContext(context.Background(), network, to.String())
		return err
	})
	return conn, err
}

// reaches reports whether a message from one address is echoed from another. It waits the whole time limit for a
// dropped message; an echo arrives long before.
func (l *lab) reaches(network string, from netip.Addr, to netip.Addr, port uint16) bool {
	l.Helper()
	const patience = 400 * time.Millisecond
	conn, err := l.connect(network, from, netip.AddrPortFrom(to, port), patience)
	if err != nil {
		var timeout net.Error
		require.True(l, errors.As(err, &timeout) && timeout.Timeout(), "%s %s:%d: %v", network, to, port, err)
		return false
	}
	defer func() { _ = conn.Close() }()
	return echoes(conn, patience)
}

func echoes(conn net.Conn, within time.Duration) bool {
	_ = conn.SetDeadline(time.Now().Add(within))
	if _, err := conn.Write([]byte("ahoy")); err != nil {
		return false
	}
	_, err := io.ReadFull(conn, make([]byte, 4))
	return err == nil
}
