//go:build !linux

package testenv

import (
	"fmt"
	"net"
)

// port is a TCP port of loopback that was free when it was chosen. Another process may take it while there is no
// listener: only Linux can reserve it.
type port struct{ number int }

func newPort() (*port, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("a port: %w", err)
	}
	return &port{ln.Addr().(*net.TCPAddr).Port}, ln.Close()
}

// listen may be called again after the listener has been closed.
func (p *port) listen() (net.Listener, error) { return net.Listen("tcp", p.address()) }

func (p *port) address() string { return fmt.Sprintf("127.0.0.1:%d", p.number) }

func (*port) close() {}
