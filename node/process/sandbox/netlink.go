//go:build linux

package sandbox

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// The little of rtnetlink(7) that a pod network needs: bridges, pairs of veth devices, addresses and routes. All of
// it is about the network namespace of the thread that calls.

// message is a netlink request as it is put together.
type message []byte

func newMessage(kind uint16, flags uint16) message {
	m := make(message, unix.SizeofNlMsghdr, 256)
	binary.NativeEndian.PutUint16(m[4:], kind)
	binary.NativeEndian.PutUint16(m[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK|flags)
	return m
}

// link appends an ifinfomsg.
func (m *message) link(index int, up bool) {
	body := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(body[4:], uint32(index))
	if up {
		binary.NativeEndian.PutUint32(body[8:], unix.IFF_UP)
		binary.NativeEndian.PutUint32(body[12:], unix.IFF_UP)
	}
	*m = append(*m, body...)
}

// attribute appends a value, padded to four bytes.
func (m *message) attribute(kind uint16, value []byte) {
	m.nest(kind, func() { *m = append(*m, value...) })
}

func (m *message) text(kind uint16, s string) { m.attribute(kind, append([]byte(s), 0)) }

func (m *message) number(kind uint16, n int) {
	m.attribute(kind, binary.NativeEndian.AppendUint32(nil, uint32(n)))
}

// nest appends an attribute of whatever inner appends.
func (m *message) nest(kind uint16, inner func()) {
	at := len(*m)
	*m = append(*m, 0, 0, 0, 0)
	inner()
	binary.NativeEndian.PutUint16((*m)[at:], uint16(len(*m)-at))
	binary.NativeEndian.PutUint16((*m)[at+2:], kind)
	for len(*m)%unix.NLMSG_ALIGNTO != 0 {
		*m = append(*m, 0)
	}
}

// do sends the request and waits for the kernel's answer. What it refuses is a unix.Errno.
func (m message) do() error {
	binary.NativeEndian.PutUint32(m, uint32(len(m)))
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Sendto(fd, m, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	switch {
	case err != nil:
		return fmt.Errorf("netlink: %w", err)
	case n < unix.SizeofNlMsghdr+4 || binary.NativeEndian.Uint16(answer[4:]) != unix.NLMSG_ERROR:
		return fmt.Errorf("netlink: %w", io.ErrUnexpectedEOF)
	}
	if errno := -int32(binary.NativeEndian.Uint32(answer[unix.SizeofNlMsghdr:])); errno != 0 {
		return unix.Errno(errno)
	}
	return nil
}

// addBridge makes a switch.
func addBridge(name string) error {
	m := newMessage(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	m.link(0, true)
	m.text(unix.IFLA_IFNAME, name)
	m.nest(unix.IFLA_LINKINFO, func() { m.text(unix.IFLA_INFO_KIND, "bridge") })
	return m.do()
}

// addVeth makes two devices that are the ends of a cable: one here, in a bridge, and the peer in another
// namespace. The name may have a %d for the kernel to choose a number.
func addVeth(name string, bridge int, peer string, there *os.File) error {
	const vethInfoPeer = 1 // linux/veth.h
	m := newMessage(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	m.link(0, true)
	m.text(unix.IFLA_IFNAME, name)
	m.number(unix.IFLA_MASTER, bridge)
	m.nest(unix.IFLA_LINKINFO, func() {
		m.text(unix.IFLA_INFO_KIND, "veth")
		m.nest(unix.IFLA_INFO_DATA, func() {
			m.nest(vethInfoPeer, func() {
				m.link(0, false)
				m.text(unix.IFLA_IFNAME, peer)
				m.number(unix.IFLA_NET_NS_FD, descriptor(there))
			})
		})
	})
	return m.do()
}

func setUp(index int) error {
	m := newMessage(unix.RTM_NEWLINK, 0)
	m.link(index, true)
	return m.do()
}

func deleteLink(index int) error {
	m := newMessage(unix.RTM_DELLINK, 0)
	m.link(index, false)
	return m.do()
}

// addAddress gives a device an address; it may have it already.
func addAddress(index int, address netip.Prefix) error {
	m := newMessage(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_REPLACE)
	body := make([]byte, unix.SizeofIfAddrmsg)
	body[0], body[1] = unix.AF_INET, byte(address.Bits())
	binary.NativeEndian.PutUint32(body[4:], uint32(index))
	m = append(m, body...)
	m.attribute(unix.IFA_LOCAL, address.Addr().AsSlice())
	m.attribute(unix.IFA_ADDRESS, address.Addr().AsSlice())
	return m.do()
}

// route says where packets go: to a subnet right behind the device, or to all there is by a gateway, which is
// reached there whatever its address.
type route struct {
	device  int
	to      netip.Prefix // the zero Prefix is everything
	gateway netip.Addr
	table   uint32
}

// addRoute may be repeated.
func addRoute(r route) error {
	m := newMessage(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE)
	body := make([]byte, unix.SizeofRtMsg)
	body[0], body[5], body[6], body[7] = unix.AF_INET, unix.RTPROT_BOOT, unix.RT_SCOPE_LINK, unix.RTN_UNICAST
	if r.to.IsValid() {
		body[1] = byte(r.to.Bits())
	}
	if r.gateway.IsValid() {
		body[6] = unix.RT_SCOPE_UNIVERSE
		binary.NativeEndian.PutUint32(body[8:], unix.RTNH_F_ONLINK)
	}
	m = append(m, body...)
	if r.to.IsValid() {
		m.attribute(unix.RTA_DST, r.to.Addr().AsSlice())
	}
	if r.gateway.IsValid() {
		m.attribute(unix.RTA_GATEWAY, r.gateway.AsSlice())
	}
	m.number(unix.RTA_OIF, r.device)
	m.number(unix.RTA_TABLE, int(r.table))
	return m.do()
}

// addRule has what comes from a subnet, and for which the main table has no route, look into another table;
// it may be there already.
func addRule(from netip.Prefix, table uint32) error {
	const afterMain = 40_000
	m := newMessage(unix.RTM_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	body := make([]byte, unix.SizeofRtMsg) // a fib_rule_hdr is as long
	body[0], body[2], body[7] = unix.AF_INET, byte(from.Bits()), unix.FR_ACT_TO_TBL
	m = append(m, body...)
	m.attribute(unix.FRA_SRC, from.Addr().AsSlice())
	m.number(unix.FRA_PRIORITY, afterMain)
	m.number(unix.FRA_TABLE, int(table))
	if err := m.do(); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

// forward has packets that come in by a device passed on.
func forward(index int) error {
	const inetConf, forwarding = 1, 1 // IFLA_INET_CONF of linux/if_link.h, IPV4_DEVCONF_FORWARDING of linux/ip.h
	m := newMessage(unix.RTM_NEWLINK, 0)
	m.link(index, true)
	m.nest(unix.IFLA_AF_SPEC, func() {
		m.nest(unix.AF_INET, func() {
			m.nest(inetConf, func() { m.number(forwarding, 1) })
		})
	})
	return m.do()
}

// loopback brings lo up in a new network namespace, and gives it the pod's address: until the pod is
// connected that is where its containers find each other.
func loopback(ip string) error {
	address, err := netip.ParseAddr(ip)
	if err != nil {
		return err
	}
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		return err
	}
	if err := setUp(lo.Index); err != nil {
		return err
	}
	return addAddress(lo.Index, netip.PrefixFrom(address, address.BitLen()))
}

// within does something in another network namespace, on a thread that ends with it.
func within(namespace *os.File, do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if err := unix.Setns(descriptor(namespace), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter network namespace: %w", err)
			return
		}
		done <- do()
	}()
	return <-done
}

// newNetwork makes a network namespace, which is there as long as somebody has the file or one of its
// devices' users lives.
func newNetwork() (*os.File, error) {
	type result struct {
		f   *os.File
		err error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- result{nil, fmt.Errorf("network namespace: %w", err)}
			return
		}
		f, err := os.Open("/proc/thread-self/ns/net")
		done <- result{f, err}
	}()
	r := <-done
	return r.f, r.err
}
