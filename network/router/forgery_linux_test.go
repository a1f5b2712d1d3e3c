package router_test

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/coxswain-dev/coxswain/network/router"
)

// forged returns a VXLAN packet to the router of a machine, with a UDP packet between two pods inside, to port 53.
func forged(machine, source, destination string) []byte {
	mac := sha256.Sum256([]byte("vxlan of " + machine)) // the machine's hardware address, which is not secret
	mac[0] = mac[0]&^1 | 2
	packet := []byte{8, 0, 0, 0, 0, 0, 1, 0} // VNI 1
	packet = append(packet, mac[:6]...)
	packet = append(packet, 2, 0, 0, 0, 0, 1, 8, 0)
	header := []byte{0x45, 0, 0, 33, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}
	header = append(header, netip.MustParseAddr(source).AsSlice()...)
	header = append(header, netip.MustParseAddr(destination).AsSlice()...)
	binary.BigEndian.PutUint16(header[10:], checksum(header))
	return append(append(packet, header...), 0, 53, 0, 53, 0, 13, 0, 0, 'h', 'e', 'l', 'l', 'o')
}

func checksum(header []byte) uint16 {
	sum := uint32(0)
	for i := 0; i < len(header); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(header[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// send sends a UDP packet to the VXLAN port of an address.
func (m machine) send(to string, packet []byte) {
	m.t.Helper()
	m.do(func() error {
		conn, err := net.Dial("udp", net.JoinHostPort(to, fmt.Sprint(router.VXLANPort)))
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write(packet)
		if err != nil {
			m.t.Logf("to %s: %v", to, err) // refused at once
		}
		return nil
	})
}

// joinedBy joins machines with a router and a pod each: 10.1.0.5 on the first, 10.2.0.5 on the second, …
func joinedBy(t *testing.T, mode string, machines ...machine) (routers []*router.Router, pods []machine) {
	t.Helper()
	var all []router.Peer
	for i, m := range machines {
		subnet := fmt.Sprintf("10.%d.0.0/24", i+1)
		r := m.router("cox0", subnet)
		address := netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})
		m.do(func() error { return r.JoinPeers(mode, address) })
		routers, pods = append(routers, r), append(pods, m.pod(r, fmt.Sprintf("10.%d.0.5", i+1)))
		all = append(all, router.Peer{Address: address, Subnets: []netip.Prefix{netip.MustParsePrefix(subnet)}})
	}
	for i, m := range machines {
		var others []router.Peer
		for j, p := range all {
			if j != i {
				others = append(others, p)
			}
		}
		m.do(func() error { return routers[i].SetPeers(others) })
	}
	return routers, pods
}

func TestRouter_AcceptsVXLANFromPeersOnly(t *testing.T) {
	t.Parallel()
	a, b, stranger := newMachine(t), newMachine(t), newMachine(t)
	segment(t, a, b, stranger)
	routers, pods := joinedBy(t, router.VXLAN, a, b)
	a.do(routers[0].Masquerade)
	b.do(routers[1].Masquerade)
	lead(t, routers[0], "10.96.0.1", "192.0.2.1")
	lead(t, routers[0], "10.96.0.2", "192.0.2.2")
	attacker := a.pod(routers[0], "10.1.0.66")
	atA, atB := pods[0].senders(53), pods[1].senders(53)
	pods[1].sendAs("10.2.0.5", "10.1.0.5", 53)
	require.Equal(t, "10.2.0.5", <-atA)
	for _, attack := range []struct {
		name   string
		from   machine
		to     string
		packet []byte
		at     <-chan string
	}{
		{"a pod, its machine", attacker, "192.0.2.1", forged("192.0.2.1", "10.2.0.9", "10.1.0.5"), atA},
		{"a pod, its machine's end of the cable", attacker, "10.1.0.1", forged("192.0.2.1", "10.2.0.9", "10.1.0.5"), atA},
		{"a pod, a Service of its machine", attacker, "10.96.0.1", forged("192.0.2.1", "10.2.0.9", "10.1.0.5"), atA},
		{"a pod, another machine", attacker, "192.0.2.2", forged("192.0.2.2", "10.1.0.9", "10.2.0.5"), atB},
		{"a pod, another machine's cable", attacker, "10.2.0.1", forged("192.0.2.2", "10.1.0.9", "10.2.0.5"), atB},
		{"a pod, a Service of another machine", attacker, "10.96.0.2", forged("192.0.2.2", "10.1.0.9", "10.2.0.5"), atB},
		{"a program of a machine", a, "192.0.2.2", forged("192.0.2.2", "10.1.0.9", "10.2.0.5"), atB},
		{"a program of the machine itself", a, "127.0.0.1", forged("192.0.2.1", "10.2.0.9", "10.1.0.5"), atA},
		{"a stranger", stranger, "192.0.2.1", forged("192.0.2.1", "10.2.0.9", "10.1.0.5"), atA},
	} {
		attack.from.send(attack.to, attack.packet)
		pods[1].sendAs("10.2.0.5", "10.1.0.5", 53)
		pods[0].sendAs("10.1.0.5", "10.2.0.5", 53)
		first, also := <-atA, <-atB
		require.Equal(t, "10.2.0.5", first, attack.name)
		require.Equal(t, "10.1.0.5", also, attack.name)
	}
	a.do(func() error { return routers[0].SetPeers(nil) })
	b.send("192.0.2.1", forged("192.0.2.1", "10.2.0.9", "10.1.0.5"))
	b.do(func() error { return routers[1].JoinPeers(router.VXLAN, netip.MustParseAddr("192.0.2.2")) }) // again
	pods[1].sendAs("10.2.0.5", "10.1.0.5", 53)
	attacker.sendAs("10.1.0.66", "10.1.0.5", 53)
	require.Equal(t, "10.1.0.66", <-atA, "packets of a former peer are dropped")
}

func TestRouter_DropsForgedSourcesOfPeersInIPv6(t *testing.T) {
	t.Parallel()
	a, b := newMachine(t), newMachine(t)
	segment(t, a, b)
	var routers []*router.Router
	var pods []machine
	for i, m := range []machine{a, b} {
		r := m.router("cox0", fmt.Sprintf("fd0%d::/64", i+1))
		m.do(func() error {
			uplink, err := netlink.LinkByName("uplink")
			if err != nil {
				return err
			}
			own := netip.MustParseAddr(fmt.Sprintf("fd99::%d", i+1))
			err = netlink.AddrAdd(uplink, &netlink.Addr{Flags: unix.IFA_F_NODAD,
				IPNet: &net.IPNet{IP: own.AsSlice(), Mask: net.CIDRMask(64, 128)}})
			if err != nil {
				return err
			}
			return r.JoinPeers(router.VXLAN, own)
		})
		routers, pods = append(routers, r), append(pods, m.pod(r, fmt.Sprintf("fd0%d::5", i+1)))
	}
	peer := func(i int) []router.Peer {
		return []router.Peer{{Address: netip.MustParseAddr(fmt.Sprintf("fd99::%d", i)),
			Subnets: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("fd0%d::/64", i))}}}
	}
	a.do(func() error { return routers[0].SetPeers(peer(2)) })
	b.do(func() error { return routers[1].SetPeers(peer(1)) })
	pods[0].serve("a")
	pods[1].reaches("fd01::5", "a to fd02::5")

	senders := pods[0].senders(53)
	liar := machine{t, routers[1].Namespace()} // the router of a machine that an attacker controls
	liar.do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		own := netip.MustParseAddr("fd01::66")
		return netlink.AddrAdd(lo, &netlink.Addr{Flags: unix.IFA_F_NODAD,
			IPNet: &net.IPNet{IP: own.AsSlice(), Mask: net.CIDRMask(128, 128)}})
	})
	liar.sendAs("fd01::66", "fd01::5", 53)
	pods[1].sendAs("fd02::5", "fd01::5", 53)
	require.Equal(t, "fd02::5", <-senders, "packets from elsewhere with an address of the machine's own pods are dropped")
}

func TestRouter_DropsVXLANFromPods(t *testing.T) {
	t.Parallel()
	m, other := newMachine(t), newMachine(t)
	segment(t, m, other)
	r := m.router("cox0", "10.1.0.0/24")
	m.do(r.Masquerade)
	pod, senders, tunnels := m.pod(r, "10.1.0.5"), other.senders(53), other.senders(router.VXLANPort)
	pod.sendAs("10.1.0.5", "192.0.2.2", router.VXLANPort)
	pod.sendAs("10.1.0.5", "192.0.2.2", 53)
	require.Equal(t, "192.0.2.1", <-senders)
	require.Empty(t, tunnels, "the forged packet was dropped")
}
