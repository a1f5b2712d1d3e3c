package testenv

import (
	"fmt"
	"net"
	"os"
	"syscall"
)

// port is a TCP port of loopback that is ours even while nobody listens on it: a socket that is bound to it and does
// not listen keeps the kernel from giving it to others, and a client is refused.
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
	// With the option, listeners that have it as well may use the port: those of package net have.
	if err := syscall.SetsockoptInt(p.socket, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	if err := syscall.Bind(p.socket, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	at, err := syscall.Getsockname(p.socket)
	if err != nil {
		return os.NewSyscallError("getsockname", err)
	}
	p.number = at.(*syscall.SockaddrInet4).Port
	return nil
}

// listen may be called again when the listener has been closed.
func (p *port) listen() (net.Listener, error) { return net.Listen("tcp", p.address()) }

func (p *port) address() string { return fmt.Sprintf("127.0.0.1:%d", p.number) }

func (p *port) close() { _ = syscall.Close(p.socket) }
