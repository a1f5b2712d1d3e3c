package apiserver

import (
	"context"
	"errors"
	"net"
	"sync/atomic"

	"github.com/coxswain-dev/coxswain/apiserver/proxy"
)

// dialFunc opens a connection.
type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// elsewhere opens connections to nodes, pods and services, and never to the server itself. Nodes and pods report their
// own addresses, and the server presents a certificate to them: one that reported the server's address could make the
// server act on its own API (CVE-2022-3294). The addresses of the connection are compared, so that no name and no other
// spelling of an address gets past it.
type elsewhere struct {
	dial dialFunc
	// listener is where the server listens; nil before it does.
	listener atomic.Pointer[net.TCPAddr]
}

var errOwnAddress = errors.New("address not allowed: it is the API server's own")

func newElsewhere(dial dialFunc) *elsewhere {
	if dial == nil {
		dial = (&net.Dialer{Timeout: proxy.DialTimeout}).DialContext
	}
	return &elsewhere{dial: dial}
}

// Dial opens a connection, or returns errOwnAddress.
func (e *elsewhere) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := e.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if e.isOwn(conn) {
		_ = conn.Close()
		return nil, errOwnAddress
	}
	return conn, nil
}

// isOwn reports whether a connection leads to the listener. A connection of a machine to itself has one address at both
// ends, or loopback addresses.
func (e *elsewhere) isOwn(conn net.Conn) bool {
	own := e.listener.Load()
	remote, ok := conn.RemoteAddr().(*net.TCPAddr)
	local, also := conn.LocalAddr().(*net.TCPAddr)
	return own != nil && ok && also && remote.Port == own.Port &&
		(remote.IP.Equal(own.IP) || remote.IP.Equal(local.IP) || remote.IP.IsLoopback())
}
