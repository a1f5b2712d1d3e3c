// Package conn manages connections without regard to the meaning of requests. It limits the connections of one client
// (limit.go) and of all clients (memory.go), gives clients fair shares of HTTP/2 requests (share.go), combines writes
// into few system calls (cork.go), ends streams (stall.go) and connections (stuck.go) that clients do not read, and
// frees the memory of a server that has ended (releasable.go).
//
// A net.Listener comes in and goes out. No other package of this repository may be imported here.
//
// # Concurrency
//
// Listener.mu guards the set of connections, Conn.mu the buffer of one connection. No goroutine holds both. A write to
// the network happens with Conn.mu held, and may take as long as the client likes; stuck.go watches it from outside,
// without the lock.
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

// Stream and Answer are the most bytes that a corked connection holds back: for a stream, because thousands of streams
// may wait for clients that don't read, and for a long answer.
const (
	Stream = 18 << 10
	Answer = 64 << 10
)

// A connection takes a buffer from a pool when it is corked, and returns it when it is uncorked: idle connections have
// none.
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
	mu      sync.Mutex // guards the maps
	open    map[*Conn]struct{}
	clients map[netip.Prefix]*client // the clients with open connections
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
	conn := &Conn{Conn: c, listener: l, address: ClientOf(c.RemoteAddr())}
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

// NoteState records whether a connection is active, for http.Server.ConnState. With HTTP/2, net/http calls it when a
// connection gets its first stream and when its last one has been written completely.
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

// Conn is a connection that can hold back writes. A nil *Conn is valid and never corked.
type Conn struct {
	net.Conn
	listener *Listener    // immutable, like the next two
	address  netip.Prefix // the unit that clients are counted by (ClientOf)
	client   *client      // shared by the connections of one address
	active   atomic.Bool  // a request is in progress
	// taken is the number of bytes that the requests in progress take, as the server counts them.
	taken atomic.Int64
	// writes counts the beginnings and ends of writes: it is odd while one is in progress. There is one at a time,
	// under mu.
	writes atomic.Uint64

	// mu guards the fields below, and serializes writes to the network.
	mu     sync.Mutex
	buffer *[]byte // the bytes that are held back; nil unless corked
	// err is the reason why bytes that were held back could not be sent. TLS believes that they were, so no write may
	// follow them.
	err error
}

func (c *Conn) Close() error {
	c.listener.mu.Lock()
	c.listener.leave(c)
	c.listener.mu.Unlock()
	return c.Conn.Close()
}

func (c *Conn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, c.err
	}
	if c.buffer == nil {
		return c.write(b)
	}
	if len(*c.buffer)+len(b) > cap(*c.buffer) {
		if err := c.send(); err != nil {
			return 0, err
		}
		if len(b) > cap(*c.buffer) {
			return c.write(b)
		}
	}
	*c.buffer = append(*c.buffer, b...)
	return len(b), nil
}

// send writes the bytes that are held back. c.mu is held.
func (c *Conn) send() error {
	if len(*c.buffer) > 0 && c.err == nil {
		_, c.err = c.write(*c.buffer)
	}
	*c.buffer = (*c.buffer)[:0]
	return c.err
}

// Cork holds back writes, up to limit bytes (Stream or Answer), until Uncork. It has no effect on a corked connection.
func (c *Conn) Cork(limit int) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.buffer == nil {
		c.buffer = corksOf(limit).Get().(*[]byte)
	}
}

// Uncork sends the bytes that are held back, and lets writes through again.
func (c *Conn) Uncork() error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.buffer == nil {
		return nil
	}
	err := c.send()
	corksOf(cap(*c.buffer)).Put(c.buffer)
	c.buffer = nil
	return err
}

type corkKey struct{}

// WithConn puts a connection into the context, for http.Server.ConnContext. Of finds it there.
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
