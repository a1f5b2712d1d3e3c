package testenv

import (
	"fmt"
	"net"
	"os"
	"syscall"
)

// port is a reserved TCP port of loopback. A socket that is bound to it but does not listen keeps the kernel from
// giving the port to other processes, and clients are refused until a listener exists.
type port struct {
	number int
	socket int
}

func newPort() (*port, error) {
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("a port: %w", os.NewSyscallError("socket", err))
	}
	p := &port{socket: socket}
	if err := p.bind(); err != nil {
		p.close()
		return nil, fmt.Errorf("a port: %w", err)
	}
	return p, nil
}

func (p *port) bind() error {
	// With this option, listeners that have it as well may use the port. Listeners of package net have it.
	if err := syscall.SetsockoptInt(p.socket, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	if err := syscall.Bind(p.socket, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	address, err := syscall.Getsockname(p.socket)
	if err != nil {
		return os.NewSyscallError("getsockname", err)
	}
	p.number = address.(*syscall.SockaddrInet4).Port
	return nil
}

// listen may be called again after the listener has been closed.
func (p *port) listen() (net.Listener, error) { return net.Listen("tcp", p.address()) }

func (p *port) address() string { return fmt.Sprintf("127.0.0.1:%d", p.number) }

func (p *port) close() { _ = syscall.Close(p.socket) }
