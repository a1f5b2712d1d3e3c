// Package conn looks after connections below the meaning of a request: how many one client may open
// (limit.go), what is its share of HTTP/2 requests (share.go), how many system calls a write takes (cork.go), when a
// stream ends that its client does not read (stall.go), and a connection (stuck.go), and when an ended server's memory
// is freed (releasable.go).
//
// A net.Listener comes in and goes out. No other package of this repository may be imported here.
package conn

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
)

// A system call costs more than everything else that is done for a watch event, so a batch of events should
// take one. net/http and crypto/tls together make several of a document larger than net/http's buffer of 4 KiB,
// and many of a batch. A stream therefore corks its connection, below TLS, while it writes.

// How many bytes a corked connection holds back at most: that of a stream, of which there are thousands that may all
// wait for clients that don't read, and that of a long answer.
const (
	Stream = 18 << 10
	Answer = 64 << 10
)

// A connection has a buffer only while it is corked.
var streamCorks, answerCorks = corks(Stream), corks(Answer)

func corks(size int) *sync.Pool {
	return &sync.Pool{New: func() any { b := make([]byte, 0, size); return &b }}
}

func corksOf(size int) *sync.Pool {
	if size <= Stream {
		return streamCorks
	}
	return answerCorks
}

// Listener accepts connections that can be corked, and keeps track of the open ones.
type Listener struct {
	net.Listener
	mu      sync.Mutex
	open    map[*Conn]struct{}
	clients map[netip.Prefix]*client // those with connections
}

// NewListener wraps a listener of plain connections. TLS belongs on top of it.
func NewListener(ln net.Listener) *Listener {
	return &Listener{Listener: ln, open: map[*Conn]struct{}{}, clients: map[netip.Prefix]*client{}}
}

func (l *Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	conn := &Conn{Conn: c, of: l, address: ClientOf(c.RemoteAddr())}
	l.mu.Lock()
	defer l.mu.Unlock()
	conn.client = l.enter(conn.address)
	l.open[conn] = struct{}{}
	return conn, nil
}

// Busy reports whether a request is in progress on any of the connections.
func (l *Listener) Busy() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.open {
		if c.active.Load() {
			return true
		}
	}
	return false
}

// NoteState is for http.Server.ConnState. With HTTP/2, net/http calls it when a connection gets its first stream
// and when its last one has been written completely.
func NoteState(c net.Conn, state http.ConnState) {
	if corked := corkedBelow(c); corked != nil {
		corked.active.Store(state == http.StateActive)
	}
}

// corkedBelow returns the connection below TLS, or nil if it cannot be corked.
func corkedBelow(c net.Conn) *Conn {
	if below, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = below.NetConn()
	}
	corked, _ := c.(*Conn)
	return corked
}

// Conn is a connection whose writes can be held back. A nil *Conn is valid and never corked.
type Conn struct {
	net.Conn
	of      *Listener
	address netip.Prefix
	client  *client     // shared by the connections of one address
	active  atomic.Bool // a request is in progress
	// taken is how many bytes the requests in progress take, as the server counts them.
	taken atomic.Int64
	// writes counts the beginnings and ends of writes: it is odd while one is in progress.
	writes atomic.Uint64

	mu   sync.Mutex
	held *[]byte // nil unless corked
	// err is why held bytes could not be sent. TLS believes that they were, so nothing may follow them.
	err error
}

func (c *Conn) Close() error {
	c.of.mu.Lock()
	c.of.leave(c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

func (c *Conn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, c.err
	}
	if c.held == nil {
		return c.write(b)
	}
	if len(*c.held)+len(b) > cap(*c.held) {
		if err := c.send(); err != nil {
			return 0, err
		}
		if len(b) > cap(*c.held) {
			return c.write(b)
		}
	}
	*c.held = append(*c.held, b...)
	return len(b), nil
}

// send writes the held bytes. c.mu is held.
func (c *Conn) send() error {
	if len(*c.held) > 0 && c.err == nil {
		_, c.err = c.write(*c.held)
	}
	*c.held = (*c.held)[:0]
	return c.err
}

// Cork holds back writes, up to so many bytes (Stream or Answer), until Uncork.
func (c *Conn) Cork(most int) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held == nil {
		c.held = corksOf(most).Get().(*[]byte)
	}
}

// Uncork sends what is held back and lets writes through again.
func (c *Conn) Uncork() error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held == nil {
		return nil
	}
	err := c.send()
	corksOf(cap(*c.held)).Put(c.held)
	c.held = nil
	return err
}

type corkKey struct{}

// WithConn is for http.Server.ConnContext: Of finds the connection in the context.
func WithConn(ctx context.Context, c net.Conn) context.Context {
	if corked := corkedBelow(c); corked != nil {
		return context.WithValue(ctx, corkKey{}, corked)
	}
	return ctx
}

// Of returns the connection of a request, or nil if the request shares it with others, as in HTTP/2.
func Of(r *http.Request) *Conn {
	if r.ProtoMajor != 1 {
		return nil
	}
	return Below(r)
}

// Below returns the connection of a request, which it may share with others.
func Below(r *http.Request) *Conn {
	c, _ := r.Context().Value(corkKey{}).(*Conn)
	return c
}
