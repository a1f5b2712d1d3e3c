package proxy

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	vns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/coxswain-dev/coxswain/network/netns"
	"github.com/coxswain-dev/coxswain/network/nft"
)

// world is a node's network namespace and its pods. They are connected as by the process runtime: every packet of a pod
// is routed in the node's namespace.
type world struct {
	*testing.T
	node    *os.File
	outside *pod // a machine elsewhere, on the node's default route
	pods    int
}

// namespace creates a network namespace. It skips the test if that is not permitted or the kernel has no nftables.
func namespace(tb testing.TB) *os.File {
	tb.Helper()
	f, err := netns.New()
	if err == nil {
		err = nft.Supported(f)
	}
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, errors.ErrUnsupported) ||
		errors.Is(err, unix.EPROTONOSUPPORT) {
		tb.Skipf("SKIPPED: nftables take root and a kernel that has them, and are not tested here: %v", err)
	}
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = f.Close() })
	return f
}

func newWorld(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	w := &world{T: t, node: namespace(t)}
	require.NoError(t, netns.Do(w.node, func() error {
		for _, file := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
			if err := os.WriteFile("/proc/sys/net/"+file, []byte("1"), 0); err != nil {
				return err
			}
		}
		return nil
	}))
	w.in(w.node, func(h *netlink.Handle) error {
		lo, err := h.LinkByName("lo")
		if err != nil {
			return err
		}
		for _, a := range []string{"10.244.0.0/32", "fd00::/128", "192.0.2.10/32", "2001:db8::10/128"} {
			if err := h.AddrAdd(lo, address128(a)); err != nil {
				return fmt.Errorf("%s: %w", a, err)
			}
		}
		return h.LinkSetUp(lo)
	})
	w.outside = &pod{world: w, namespace: namespace(t), v4: netip.MustParseAddr("203.0.113.2"),
		v6: netip.MustParseAddr("2001:db8:1::2")}
	w.outside.connect("uplink")
	w.in(w.node, func(h *netlink.Handle) error {
		link, err := h.LinkByName("uplink")
		if err != nil {
			return err
		}
		for _, via := range []netip.Addr{w.outside.v4, w.outside.v6} {
			if err := h.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: via.AsSlice()}); err != nil {
				return fmt.Errorf("default route: %w", err)
			}
		}
		return nil
	})
	return w
}

func address128(text string) *netlink.Addr {
	a, err := netlink.ParseAddr(text)
	if err != nil {
		panic(err)
	}
	if a.IP.To4() == nil {
		a.Flags = unix.IFA_F_NODAD
	}
	return a
}

// in calls do with a handle for a namespace's devices.
func (w *world) in(namespace *os.File, do func(*netlink.Handle) error) {
	w.Helper()
	h, err := netlink.NewHandleAt(vns.NsHandle(namespace.Fd()))
	require.NoError(w, err)
	defer h.Close()
	require.NoError(w, do(h))
}

// pod creates a pod, with addresses 10.244.0.N and fd00::N.
func (w *world) pod() *pod {
	w.Helper()
	w.pods++
	n := w.pods + 1
	p := &pod{world: w, namespace: namespace(w), v4: netip.AddrFrom4([4]byte{10, 244, 0, byte(n)}),
		v6: netip.MustParseAddr(fmt.Sprintf("fd00::%x", n))}
	p.connect(fmt.Sprintf("pod%d", n))
	return p
}

// connect connects the pod with the node, and waits until both ends of the cable can send.
func (p *pod) connect(device string) {
	p.Helper()
	p.in(p.node, func(h *netlink.Handle) error { return cable(h, device, p) })
	p.in(p.namespace, func(h *netlink.Handle) error { return podSide(h, p) })
	for name, end := range map[string]*os.File{device: p.node, "eth0": p.namespace} {
		p.in(end, func(h *netlink.Handle) error {
			require.Eventually(p, func() bool {
				link, err := h.LinkByName(name)
				return err == nil && link.Attrs().OperState == netlink.OperUp
			}, limit, tick)
			return nil
		})
	}
}

func cable(h *netlink.Handle, device string, p *pod) error {
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: device}, PeerName: "eth0",
		PeerNamespace: netlink.NsFd(int(p.namespace.Fd()))}
	if err := h.LinkAdd(veth); err != nil {
		return err
	}
	link, err := h.LinkByName(device)
	if err != nil {
		return err
	}
	for _, a := range []string{"169.254.0.1/32", "fe80::1/64"} {
		if err := h.AddrAdd(link, address128(a)); err != nil {
			return fmt.Errorf("%s: %w", a, err)
		}
	}
	if err := h.LinkSetUp(link); err != nil {
		return err
	}
	for _, a := range []netip.Addr{p.v4, p.v6} {
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: host(a), Scope: netlink.SCOPE_LINK}
		if err := h.RouteAdd(route); err != nil {
			return err
		}
	}
	return nil
}

func host(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

func podSide(h *netlink.Handle, p *pod) error {
	link, err := h.LinkByName("eth0")
	if err != nil {
		return err
	}
	lo, err := h.LinkByName("lo")
	if err != nil {
		return err
	}
	for _, a := range []netip.Addr{p.v4, p.v6} {
		if err := h.AddrAdd(link, address128(netip.PrefixFrom(a, a.BitLen()).String())); err != nil {
			return err
		}
	}
	if err := errors.Join(h.LinkSetUp(lo), h.LinkSetUp(link)); err != nil {
		return err
	}
	for _, via := range []string{"169.254.0.1", "fe80::1"} {
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: net.ParseIP(via), Flags: int(netlink.FLAG_ONLINK)}
		if err := h.RouteAdd(route); err != nil {
			return fmt.Errorf("route via %s: %w", via, err)
		}
	}
	return nil
}

// pod is a network namespace that is connected to the node's.
type pod struct {
	*world
	namespace *os.File
	v4, v6    netip.Addr
}

// serve answers at a port of the pod, by TCP and UDP, with the name of the pod, which is its IPv4 address, and the
// client's address as seen by the pod.
func (p *pod) serve(port int) *pod {
	p.Helper()
	answer := func(client net.Addr) []byte {
		return fmt.Appendf(nil, "%s %s", p.v4, netip.MustParseAddrPort(client.String()).Addr().Unmap())
	}
	require.NoError(p, netns.Do(p.namespace, func() error {
		listener, err := net.Listen("tcp", ":"+strconv.Itoa(port))
		if err != nil {
			return err
		}
		packets, err := net.ListenPacket("udp", ":"+strconv.Itoa(port))
		if err != nil {
			return err
		}
		p.Cleanup(func() { _, _ = listener.Close(), packets.Close() })
		go func() {
			for {
				c, err := listener.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					_, _ = c.Write(answer(c.RemoteAddr()))
					_, _ = io.Copy(c, c)
				}()
			}
		}()
		go func() {
			b := make([]byte, 1500)
			for {
				_, from, err := packets.ReadFrom(b)
				if err != nil {
					return
				}
				_, _ = packets.WriteTo(answer(from), from)
			}
		}()
		return nil
	}))
	return p
}

const (
	limit = 20 * time.Second
	tick  = time.Millisecond
	// patience is how long a test waits for a packet that must not be answered.
	patience = 300 * time.Millisecond
)

// dial opens a connection from a namespace.
func dial(from *os.File, network, to string) (c net.Conn, err error) {
	err = netns.Do(from, func() error {
		c, err = (&net.Dialer{Timeout: 2 * time.Second}).Dial(network, to)
		return err
	})
	return c, err
}

// ask opens a connection and returns the name of the pod that answered, and the client's address as seen there.
func ask(from *os.File, network, to string) (name, client string, err error) {
	c, err := dial(from, network, to)
	if err != nil {
		return "", "", err
	}
	defer c.Close()
	return question(c, network)
}

func question(c net.Conn, network string) (name, client string, err error) {
	b := make([]byte, 200)
	wait := 5 * time.Second
	if network == "udp" {
		wait = patience
		if _, err := c.Write([]byte("?")); err != nil {
			return "", "", err
		}
	}
	_ = c.SetReadDeadline(time.Now().Add(wait))
	n, err := c.Read(b)
	if err != nil {
		return "", "", err
	}
	_, err = fmt.Sscan(string(b[:n]), &name, &client)
	return name, client, err
}

// answers requires that one of these pods answers a question.
func (w *world) answers(from *os.File, network, to string, by ...*pod) {
	w.Helper()
	name, _, err := ask(from, network, to)
	require.NoError(w, err, "%s %s", network, to)
	for _, p := range by {
		if p.v4.String() == name {
			return
		}
	}
	w.Fatalf("%s %s: answered by %s", network, to, name)
}

// refuses requires a rejection.
func (w *world) refuses(from *os.File, network, to string) {
	w.Helper()
	_, _, err := ask(from, network, to)
	require.ErrorIs(w, err, syscall.ECONNREFUSED, "%s %s", network, to)
}

// drops requires that there is no answer at all.
func (w *world) drops(from *os.File, to string) {
	w.Helper()
	_, _, err := ask(from, "udp", to)
	require.ErrorIs(w, err, os.ErrDeadlineExceeded, "udp %s", to)
}
