package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	"github.com/coxswain-dev/coxswain/network/netns"
)

// Sockets are the sockets of a server: at each address one for UDP and one for TCP.
type Sockets struct {
	udp []*net.UDPConn
	tcp []net.Listener
}

// Listen opens sockets at addresses such as ":53" or "127.0.0.1:0"; port 0 selects a port that is free for both UDP and
// TCP. They are opened in the given network namespace; nil stands for the process's. Several processes may listen at an
// address: each gets a share of the clients (SO_REUSEPORT). The caller closes the sockets, or passes them to Run, which
// closes them.
func Listen(addresses []string, namespace *os.File) (*Sockets, error) {
	s := &Sockets{}
	err := netns.Do(namespace, func() error {
		for _, address := range addresses {
			if err := s.open(address); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("dns: listen: %w", err)
	}
	return s, nil
}

// tries limits the search for a free port: a port that is free for UDP may be in use for TCP.
const tries = 20

func (s *Sockets) open(address string) error {
	config := &net.ListenConfig{Control: reusePort}
	var err error
	for range tries {
		var packets net.PacketConn
		if packets, err = config.ListenPacket(context.Background(), "udp", address); err != nil {
			return err
		}
		var streams net.Listener
		if streams, err = config.Listen(context.Background(), "tcp", packets.LocalAddr().String()); err == nil {
			conn := packets.(*net.UDPConn) // the type that ListenPacket returns for "udp"
			withDestination(conn)
			s.udp, s.tcp = append(s.udp, conn), append(s.tcp, streams)
			return nil
		}
		_ = packets.Close()
		if _, port, _ := net.SplitHostPort(address); port != "0" {
			return err
		}
	}
	return err
}

// withDestination reports the destination address of each packet, so that the answer comes from that address. Where a
// socket has many addresses, the kernel would choose another one.
func withDestination(conn *net.UDPConn) {
	// A socket has one family or both. Each call fails for the other family.
	_ = ipv6.NewPacketConn(conn).SetControlMessage(ipv6.FlagDst|ipv6.FlagInterface, true)
	_ = ipv4.NewPacketConn(conn).SetControlMessage(ipv4.FlagDst|ipv4.FlagInterface, true)
}

// Addresses returns the addresses of the sockets. Each has a UDP and a TCP socket.
func (s *Sockets) Addresses() []netip.AddrPort {
	var list []netip.AddrPort
	for _, conn := range s.udp {
		local := conn.LocalAddr().(*net.UDPAddr).AddrPort()
		list = append(list, netip.AddrPortFrom(local.Addr().Unmap(), local.Port()))
	}
	return list
}

// Close closes the sockets. Questions in progress get no answer.
func (s *Sockets) Close() error {
	var errs []error
	for _, conn := range s.udp {
		errs = append(errs, conn.Close())
	}
	for _, ln := range s.tcp {
		errs = append(errs, ln.Close())
	}
	return errors.Join(errs...)
}
