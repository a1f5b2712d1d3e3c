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

// Sockets are where a server listens: at each address over UDP and TCP.
type Sockets struct {
	udp []*net.UDPConn
	tcp []net.Listener
}

// Listen opens sockets at addresses such as ":53" or "127.0.0.1:0", where 0 takes a port that is free for both UDP and
// TCP. namespace is the network namespace in which they are; nil is that of the process. Several processes may listen
// at an address: each gets a share of the clients (SO_REUSEPORT). The caller closes them, or gives them to Run, which
// does.
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

// tries is how often a free port is looked for: one that is free for UDP need not be free for TCP.
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
			conn := packets.(*net.UDPConn) // as ListenPacket returns for "udp"
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

// withDestination has packets come with the address that they were sent to, from which they are then answered: where a
// socket has many addresses, the kernel would choose another one.
func withDestination(conn *net.UDPConn) {
	// A socket is of one family, or of both; each call fails for the other.
	_ = ipv6.NewPacketConn(conn).SetControlMessage(ipv6.FlagDst|ipv6.FlagInterface, true)
	_ = ipv4.NewPacketConn(conn).SetControlMessage(ipv4.FlagDst|ipv4.FlagInterface, true)
}

// Addresses are those of the sockets, each of which is there over UDP and TCP.
func (s *Sockets) Addresses() []netip.AddrPort {
	var list []netip.AddrPort
	for _, conn := range s.udp {
		at := conn.LocalAddr().(*net.UDPAddr).AddrPort()
		list = append(list, netip.AddrPortFrom(at.Addr().Unmap(), at.Port()))
	}
	return list
}

// Close closes the sockets. Questions under way get no answer.
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
