package ingress

import (
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// machine is the real clock. The kernel uses it for read and write deadlines.
var machine clock.PassiveClock = clock.RealClock{}

// limits limit connections. They are safe for concurrent use.
type limits struct {
	total, perClient int
	write            time.Duration // time limit of one write

	mu       sync.Mutex
	open     int
	byClient map[netip.Prefix]int
	refused  func() // increments a counter
}

func newLimits(o Options, refused func()) *limits {
	return &limits{total: o.MaxConnections, perClient: o.MaxConnectionsPerClient, write: o.WriteTimeout,
		byClient: map[netip.Prefix]int{}, refused: refused}
}

// enter counts a connection. It returns false if that would exceed a limit.
func (l *limits) enter(client netip.Prefix) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open >= l.total || l.byClient[client] >= l.perClient {
		return false
	}
	l.open++
	l.byClient[client]++
	return true
}

func (l *limits) leave(client netip.Prefix) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if l.byClient[client]--; l.byClient[client] == 0 {
		delete(l.byClient, client)
	}
}

func (l *limits) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open
}

// clientOf returns the unit that connections are counted by: an IPv4 address, or an IPv6 /64, which one customer has
// alone.
func clientOf(a net.Addr) netip.Prefix {
	var ip netip.Addr
	if tcp, ok := a.(*net.TCPAddr); ok {
		ip = tcp.AddrPort().Addr().Unmap().WithZone("")
	}
	bits := ip.BitLen()
	if ip.Is6() {
		bits = 64
	}
	prefix, _ := ip.Prefix(bits) // the zero Prefix for an invalid address, which counts as one client
	return prefix
}

// limited closes connections beyond the limits right after accepting them.
type limited struct {
	net.Listener
	limits *limits
}

// Accept implements net.Listener.
func (l limited) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		client := clientOf(conn.RemoteAddr())
		if l.limits.enter(client) {
			return &clientConn{Conn: conn, limits: l.limits, client: client}, nil
		}
		l.limits.refused()
		_ = conn.Close()
	}
}

// clientConn is a client's connection. It fails if the client does not read for Options.WriteTimeout.
type clientConn struct {
	net.Conn
	limits *limits
	client netip.Prefix
	closed sync.Once
}

// Write implements net.Conn.
func (c *clientConn) Write(p []byte) (int, error) {
	if err := c.SetWriteDeadline(machine.Now().Add(c.limits.write)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

// CloseWrite sends the end of the stream. net/http calls it before it drops a connection with unread input.
func (c *clientConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// Close implements net.Conn.
func (c *clientConn) Close() error {
	c.closed.Do(func() { c.limits.leave(c.client) })
	return c.Conn.Close()
}

// patientBody fails a request whose body stalls. The limit applies to each read, so that a long upload may take its
// time.
type patientBody struct {
	io.ReadCloser
	control *http.ResponseController
	limit   time.Duration
}

// Read implements io.Reader.
func (b *patientBody) Read(p []byte) (int, error) {
	_ = b.control.SetReadDeadline(machine.Now().Add(b.limit)) // writers of tests do not support it
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		// net/http keeps reading to notice a disconnect, while the response may take any time.
		_ = b.control.SetReadDeadline(time.Time{})
	}
	return n, err
}

func addressOf(l net.Listener) (*net.TCPAddr, bool) {
	if l == nil {
		return nil, false
	}
	a, ok := l.Addr().(*net.TCPAddr)
	return a, ok
}

func portText(a *net.TCPAddr) string { return strconv.Itoa(a.Port) }
