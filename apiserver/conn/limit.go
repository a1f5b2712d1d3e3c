package conn

import (
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"
)

// ClientOf returns the unit that clients are counted by: an IPv4 address, also one that is written as IPv6, or an IPv6
// network of 64 bits. One customer of a provider has such a network at least, and every address in it.
func ClientOf(address net.Addr) netip.Prefix {
	var ip netip.Addr
	if tcp, ok := address.(*net.TCPAddr); ok {
		ip = tcp.AddrPort().Addr().Unmap().WithZone("")
	}
	bits := ip.BitLen()
	if ip.Is6() {
		bits = 64
	}
	client, _ := ip.Prefix(bits) // the zero Prefix, of an address without IP, counts as a client, too
	return client
}

// fairListener closes new connections of a client that has the maximum.
type fairListener struct {
	net.Listener
	max      int
	rejected *rejections

	mu   sync.Mutex
	open map[netip.Prefix]int // guarded by mu; no zeros
}

// LimitPerClient accepts at most limit open connections from one client (ClientOf); a negative number sets no limit.
func LimitPerClient(ln net.Listener, limit int, log *slog.Logger) net.Listener {
	if limit < 0 {
		return ln
	}
	return &fairListener{Listener: ln, max: limit, open: map[netip.Prefix]int{},
		rejected: &rejections{log: log, message: "clients have too many connections", every: reportEvery}}
}

func (l *fairListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		client := ClientOf(conn.RemoteAddr())
		if l.take(client) {
			return &fairConn{Conn: conn, leave: sync.OnceFunc(func() { l.leave(client) })}, nil
		}
		l.rejected.add(client, l.max)
		_ = conn.Close()
	}
}

func (l *fairListener) take(client netip.Prefix) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[client] >= l.max {
		return false
	}
	l.open[client]++
	return true
}

func (l *fairListener) leave(client netip.Prefix) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[client]--; l.open[client] == 0 {
		delete(l.open, client)
	}
}

// fairConn calls leave when it is closed. It may be closed several times: leave must count once.
type fairConn struct {
	net.Conn
	leave func()
}

func (c *fairConn) Close() error {
	c.leave()
	return c.Conn.Close()
}

// reportEvery is the shortest time between two log lines about rejected connections.
const reportEvery = 10 * time.Second

// rejections logs rejected connections: the first one, and then their number in each period. A client can connect some
// ten thousand times a second, and must not decide how much is logged.
type rejections struct {
	log     *slog.Logger
	message string
	every   time.Duration

	// mu guards the fields below. The timer's goroutine takes it, too.
	mu    sync.Mutex
	count int         // since the last line
	timer *time.Timer // set while a period lasts
	last  []any       // attributes of the latest rejection
}

func (r *rejections) add(client netip.Prefix, limit int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count++
	r.last = []any{"client", client.String(), "limit", limit}
	if r.timer == nil {
		r.report()
	}
}

// report logs the count and begins a period. r.mu is held.
func (r *rejections) report() {
	r.log.Warn(r.message, append(r.last, "refused", r.count)...)
	r.count = 0
	r.timer = time.AfterFunc(r.every, r.ended)
}

// ended ends a period. The next one begins at once if there are rejections to log.
func (r *rejections) ended() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.timer = nil
	if r.count > 0 {
		r.report()
	}
}
