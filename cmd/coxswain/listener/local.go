// Package listener opens listeners that accept connections of this machine only, at any of its addresses, and joins
// several listeners to one.
//
//	local.go   listeners for this machine   (filter_linux.go, filter_other.go: the kernel's part)
//	group.go   several listeners as one
package listener

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"syscall"
)

// Local listens on a TCP address for connections of this machine. The host may be any address of the machine, or
// empty for all of them, the loopback addresses 127.0.0.0/8 included.
//
// On Linux the kernel drops the packets of others, as if there were no server. Elsewhere the connections of others are
// closed once they are accepted. On Linux connections are also accepted that arrive by the given devices, by number.
func Local(address string, devices ...int) (net.Listener, error) {
	filtered := true
	config := net.ListenConfig{Control: func(_, _ string, socket syscall.RawConn) error {
		var err error
		if failed := socket.Control(func(fd uintptr) { err = acceptFrom(fd, devices) }); failed != nil {
			return failed
		}
		filtered = err == nil
		return nil
	}}
	config.SetMultipathTCP(false) // its sockets take no filter
	ln, err := config.Listen(context.Background(), "tcp", address)
	if err != nil || filtered {
		return ln, err
	}
	return local{ln}, nil
}

// Admit replaces the devices of a listener of Local: it then accepts connections by lo and the devices with the given
// addresses. Connections that are open stay open. It has no effect where the kernel does not drop packets of others.
func Admit(ln net.Listener, addresses ...netip.Addr) error {
	var devices []int
	for _, a := range addresses {
		device, err := DeviceOf(a)
		if err != nil {
			return err
		}
		devices = append(devices, device)
	}
	filtered, ok := ln.(syscall.Conn)
	if !ok {
		return nil
	}
	socket, err := filtered.SyscallConn()
	if err != nil {
		return err
	}
	if failed := socket.Control(func(fd uintptr) { err = acceptFrom(fd, devices) }); failed != nil {
		return failed
	}
	return err
}

// DeviceOf returns the number of the device with an address of this machine.
func DeviceOf(address netip.Addr) (int, error) {
	devices, err := net.Interfaces()
	if err != nil {
		return 0, err
	}
	for _, device := range devices {
		addresses, _ := device.Addrs() // fails if the device is gone meanwhile
		for _, a := range addresses {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr() == address {
				return device.Index, nil
			}
		}
	}
	return 0, fmt.Errorf("no device has the address %s", address)
}

// local accepts connections of this machine only.
type local struct{ net.Listener }

// Accept implements net.Listener.
func (l local) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil || isLocal(conn) {
			return conn, err
		}
		_ = conn.Close()
	}
}

// isLocal reports whether both ends of a connection are on this machine. A connection to one of the machine's addresses
// comes from the same address or from a loopback address, unless its client has chosen another one. The kernel drops
// packets of others with such a source.
func isLocal(conn net.Conn) bool {
	remote, own := addressOf(conn.RemoteAddr()), addressOf(conn.LocalAddr())
	return remote.IsValid() && (remote.IsLoopback() || remote == own)
}

func addressOf(a net.Addr) netip.Addr {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return tcp.AddrPort().Addr().Unmap()
}
