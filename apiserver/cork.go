package apiserver

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
)

// What a watcher is sent at once should leave in one system call: that costs more than all
// else that is done for an event. net/http and crypto/tls between them make several of a
// document that is longer than net/http's buffer of 4 KiB, and of a batch of events many.
// A stream therefore corks its connection, below TLS, while it writes.

// maxCorked is how many bytes are held back at most.
const maxCorked = 64 << 10

// corks are the buffers, which a connection has only while it is corked.
var corks = sync.Pool{New: func() any { b := make([]byte, 0, maxCorked); return &b }}

// corkListener accepts connections that can be corked, and knows those that are open.
type corkListener struct {
	net.Listener
	mu   sync.Mutex
	open map[*corkedConn]struct{}
}

func newCorkListener(ln net.Listener) *corkListener {
	return &corkListener{Listener: ln, open: map[*corkedConn]struct{}{}}
}

func (l *corkListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	conn := &corkedConn{Conn: c, of: l}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open[conn] = struct{}{}
	return conn, nil
}

// busy reports whether a request is under way on any of the connections.
func (l *corkListener) busy() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.open {
		if c.active.Load() {
			return true
		}
	}
	return false
}

// noteState is the http.Server's ConnState. Of HTTP/2 it hears when a connection has its first stream and when its last one
// has been written to its end.
func noteState(c net.Conn, state http.ConnState) {
	if corked := corkedBelow(c); corked != nil {
		corked.active.Store(state == http.StateActive)
	}
}

// corkedBelow is the connection that TLS stands on, or nil.
func corkedBelow(c net.Conn) *corkedConn {
	if below, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = below.NetConn()
	}
	corked, _ := c.(*corkedConn)
	return corked
}

// corkedConn is a connection that can hold back what is written to it.
type corkedConn struct {
	net.Conn
	of     *corkListener
	active atomic.Bool // a request is under way

	mu   sync.Mutex
	held *[]byte // nil unless corked
	// err is why something that was held back could not be sent. TLS believes that it was, so
	// that nothing may follow.
	err error
}

func (c *corkedConn) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

func (c *corkedConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, c.err
	}
	if c.held == nil {
		return c.Conn.Write(b)
	}
	if len(*c.held)+len(b) > maxCorked {
		if err := c.send(); err != nil {
			return 0, err
		}
		if len(b) > maxCorked {
			return c.Conn.Write(b)
		}
	}
	*c.held = append(*c.held, b...)
	return len(b), nil
}

// send sends what is held back. The caller has the lock.
func (c *corkedConn) send() error {
	if len(*c.held) > 0 && c.err == nil {
		_, c.err = c.Conn.Write(*c.held)
	}
	*c.held = (*c.held)[:0]
	return c.err
}

// cork holds back what is written until uncork. A nil connection cannot be corked.
func (c *corkedConn) cork() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held == nil {
		c.held = corks.Get().(*[]byte)
	}
}

func (c *corkedConn) uncork() error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held == nil {
		return nil
	}
	err := c.send()
	corks.Put(c.held)
	c.held = nil
	return err
}

// releasable is a handler that can be let go of. A connection that ends while streams are open leaves net/http's HTTP/2 a
// timer (IdleTimeout), which keeps the connection, and with it the handler and all that it stands on, for minutes.
type releasable struct{ to atomic.Pointer[http.Handler] }

func newReleasable(h http.Handler) *releasable {
	r := &releasable{}
	r.to.Store(&h)
	return r
}

// release lets go of the handler. Requests that come after are cut off.
func (r *releasable) release() { r.to.Store(nil) }

func (r *releasable) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	h := r.to.Load()
	if h == nil {
		panic(http.ErrAbortHandler)
	}
	(*h).ServeHTTP(w, req)
}

type corkKey struct{}

// withConnection is the http.Server's ConnContext.
func withConnection(ctx context.Context, c net.Conn) context.Context {
	ctx = authn.WithConnection(ctx, c)
	if corked := corkedBelow(c); corked != nil {
		return context.WithValue(ctx, corkKey{}, corked)
	}
	return ctx
}

// corkOf is the connection of a request that has it for itself: in HTTP/2 it is shared.
func corkOf(r *http.Request) *corkedConn {
	if r.ProtoMajor != 1 {
		return nil
	}
	c, _ := r.Context().Value(corkKey{}).(*corkedConn)
	return c
}
