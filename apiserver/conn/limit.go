package conn

import (
	"log/slog"
	"net"
	"net/netip"
	"sync"
)

// fairListener closes new connections of a client, identified by its IP address, that has the most it may have.
type fairListener struct {
	net.Listener
	most int
	log  *slog.Logger

	mu   sync.Mutex
	open map[netip.Addr]int
}

// LimitPerClient accepts at most so many open connections from one IP address; a negative number sets no limit.
func LimitPerClient(ln net.Listener, most int, log *slog.Logger) net.Listener {
	if most < 0 {
		return ln
	}
	return &fairListener{Listener: ln, most: most, log: log, open: map[netip.Addr]int{}}
}

func (l *fairListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		client := addressOf(conn)
		if l.take(client) {
			return &fairConn{Conn: conn, leave: sync.OnceFunc(func() { l.leave(client) })}, nil
		}
		l.log.Warn("a client has too many connections", "client", client, "limit", l.most)
		_ = conn.Close()
	}
}

func addressOf(conn net.Conn) netip.Addr {
	if tcp, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

func (l *fairListener) take(client netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[client] >= l.most {
		return false
	}
	l.open[client]++
	return true
}

func (l *fairListener) leave(client netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[client]--; l.open[client] == 0 {
		delete(l.open, client)
	}
}

type fairConn struct {
	net.Conn
	leave func()
}

func (c *fairConn) Close() error {
	c.leave()
	return c.Conn.Close()
}
