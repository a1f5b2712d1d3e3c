package proxy

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
)

// Dialer opens connections to nodes, pods and services, and never to the server itself. Nodes and pods report their
// own addresses, and the server presents a certificate to them: a node that reported the server's address could make
// the server act on its own API (CVE-2022-3294). The addresses of the open connection are compared, so that neither a
// name nor another spelling of an address gets past the check.
type Dialer struct {
	dial func(ctx context.Context, network, address string) (net.Conn, error)
	// listener is the server's address; nil before the server listens.
	listener atomic.Pointer[net.TCPAddr]
}

var errOwnAddress = errors.New("address not allowed: it is the API server's own")

// NewDialer returns a Dialer that opens connections by dial; nil dials TCP.
func NewDialer(dial func(ctx context.Context, network, address string) (net.Conn, error)) *Dialer {
	if dial == nil {
		dial = (&net.Dialer{Timeout: DialTimeout}).DialContext
	}
	return &Dialer{dial: dial}
}

// Exclude sets the address of the server's listener. It may be called while connections are opened.
func (d *Dialer) Exclude(listener *net.TCPAddr) { d.listener.Store(listener) }

// Dial opens a connection. It returns errOwnAddress if the connection leads to the server itself.
func (d *Dialer) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := d.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if d.isOwn(conn) {
		_ = conn.Close()
		return nil, errOwnAddress
	}
	return conn, nil
}

// isOwn reports whether a connection leads to the listener. A connection of a machine to itself has one address at both
// ends, or loopback addresses.
func (d *Dialer) isOwn(conn net.Conn) bool {
	own := d.listener.Load()
	remote, ok := conn.RemoteAddr().(*net.TCPAddr)
	local, also := conn.LocalAddr().(*net.TCPAddr)
	return own != nil && ok && also && remote.Port == own.Port &&
		(remote.IP.Equal(own.IP) || remote.IP.Equal(local.IP) || remote.IP.IsLoopback())
}
