package policy

import (
	"net"
	"net/netip"
	"os"
	"testing"
	"time"
)

// Lab exports the lab to tests that run against an API server, in a package of their own.
type Lab struct{ l *lab }

// NewLab creates a machine with pods of these numbers, which serve a port.
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

// Router returns the namespace that routes the pods' packets.
func (l *Lab) Router() *os.File { return l.l.router }

// Reaches reports whether a connection between two addresses succeeds.
func (l *Lab) Reaches(from, to netip.Addr, port uint16) bool {
	return l.l.reaches("tcp", from, to, port)
}

// Connect connects two addresses.
func (l *Lab) Connect(from, to netip.Addr, port uint16, within time.Duration) (net.Conn, error) {
	return l.l.connect("tcp", from, netip.AddrPortFrom(to, port), within)
}

// DropsSoon reports whether a connection is rejected within a time limit, and how long that took. Attempts have a short
// timeout, so that dropped packets do not add to the time.
func (l *Lab) DropsSoon(from, to netip.Addr, port uint16, within time.Duration) (time.Duration, bool) {
	for begin := time.Now(); time.Since(begin) < within; {
		elapsed := time.Since(begin)
		conn, err := l.l.connect("tcp", from, netip.AddrPortFrom(to, port), 20*time.Millisecond)
		if err != nil {
			return elapsed, true
		}
		_ = conn.Close()
	}
	return 0, false
}
