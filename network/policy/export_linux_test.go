package policy

import (
	"net"
	"net/netip"
	"os"
	"testing"
	"time"
)

// Lab is the lab, for tests that run against an API server and are in a package of their own.
type Lab struct{ l *lab }

// NewLab makes a machine with pods of some numbers, which serve a port.
func NewLab(tb testing.TB, port uint16, pods ...byte) (*Lab, []netip.Addr) {
	l := newLab(tb)
	var addresses []netip.Addr
	for _, n := range pods {
		v4, _ := l.pod(n)
		l.serve(v4, port)
		addresses = append(addresses, v4)
	}
	return &Lab{l}, addresses
}

// Router is the namespace that the pods' packets pass.
func (l *Lab) Router() *os.File { return l.l.router }

// Reaches reports whether a connection from one address to another one is made.
func (l *Lab) Reaches(from, to netip.Addr, port uint16) bool {
	return l.l.reaches("tcp", from, to, port)
}

// Connect connects two addresses.
func (l *Lab) Connect(from, to netip.Addr, port uint16, within time.Duration) (net.Conn, error) {
	return l.l.connect("tcp", from, netip.AddrPortFrom(to, port), within)
}

// DropsSoon reports whether a connection is refused within a time, and how long it took until it was. Attempts are
// given up quickly, so that those that are dropped take no time of their own.
func (l *Lab) DropsSoon(from, to netip.Addr, port uint16, within time.Duration) (time.Duration, bool) {
	for begin := time.Now(); time.Since(begin) < within; {
		at := time.Since(begin)
		conn, err := l.l.connect("tcp", from, netip.AddrPortFrom(to, port), 20*time.Millisecond)
		if err != nil {
			return at, true
		}
		_ = conn.Close()
	}
	return 0, false
}
