// Package inprocess carries HTTP requests to a handler of the same process, without connections: no handshakes, no
// buffers, and one goroutine for a request, which is its handler's.
//
// Nothing else differs. The handler gets its own copy of what the client sends, with the client's certificate as if TLS
// had verified that the client has its key; the answer comes as it is written and flushed; each side learns when the
// other one has left; and while nobody serves, clients are refused.
package inprocess

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"syscall"
	"time"
)

// Server passes requests on to a handler while Serve lets it. Its zero value refuses them. Its methods are safe for
// concurrent use.
type Server struct {
	// ConnContext is that of http.Server, without a connection: it gives the context of a client's requests what is to
	// be remembered of the client. It may be nil.
	ConnContext func(ctx context.Context) context.Context

	mu   sync.Mutex
	life *life // nil while nobody serves
}

// life is the time from one Serve to its end.
type life struct {
	handler http.Handler
	ctx     context.Context // ends what is still under way when the grace is over
	running sync.WaitGroup
}

// Serve has a handler answer. After end has been called, further requests are refused; those under way have a grace to
// be answered, and are cut then. end returns when there are none.
func (s *Server) Serve(handler http.Handler) (end func(grace time.Duration)) {
	ctx, cancel := context.WithCancel(context.Background())
	l := &life{handler: handler, ctx: ctx}
	s.mu.Lock()
	s.life = l
	s.mu.Unlock()
	return func(grace time.Duration) {
		s.mu.Lock()
		if s.life == l {
			s.life = nil
		}
		s.mu.Unlock()
		defer time.AfterFunc(grace, cancel).Stop()
		l.running.Wait()
		cancel()
	}
}

// begin returns the present life with one more request under way, or nil.
func (s *Server) begin() *life {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life != nil {
		s.life.running.Add(1)
	}
	return s.life
}

// Client returns the transport of a client that has shown these certificates, its own first.
func (s *Server) Client(certificates ...*x509.Certificate) *Client {
	return &Client{server: s, tls: &tls.ConnectionState{Version: tls.VersionTLS13, HandshakeComplete: true,
		NegotiatedProtocol: "h2", PeerCertificates: certificates}}
}

// Client is an http.RoundTripper. Its methods are safe for concurrent use.
type Client struct {
	server *Server
	tls    *tls.ConnectionState

	mu   sync.Mutex
	of   *life
	conn context.Context // for that life
}

// CloseIdleConnections does nothing: there are none.
func (c *Client) CloseIdleConnections() {}

var errRefused = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}

// RoundTrip implements http.RoundTripper.
func (c *Client) RoundTrip(r *http.Request) (*http.Response, error) {
	body := r.Body
	if body == nil {
		body = http.NoBody
	}
	l := c.server.begin()
	if l == nil {
		_ = body.Close() // as a RoundTripper must
		return nil, errRefused
	}
	ctx, cancel := context.WithCancel(c.context(l))
	in, a := c.received(r, body).WithContext(ctx), newAnswer(r, cancel)
	follow := context.AfterFunc(r.Context(), func() { a.end(context.Cause(r.Context())) })
	go func() {
		defer l.running.Done()
		defer body.Close()
		defer follow()
		a.serve(l.handler, in)
	}()
	return a.response()
}

// context is that of a client's requests in one life of the server.
func (c *Client) context(l *life) context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of != l {
		c.of, c.conn = l, l.ctx
		if c.server.ConnContext != nil {
			c.conn = c.server.ConnContext(l.ctx)
		}
	}
	return c.conn
}

// received is a request as a server sees it.
func (c *Client) received(r *http.Request, body io.ReadCloser) *http.Request {
	in := &http.Request{
		Method: r.Method, Proto: "HTTP/2.0", ProtoMajor: 2, Header: r.Header.Clone(), Host: r.Host,
		URL:  &url.URL{Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: r.URL.RawQuery},
		Body: body, ContentLength: r.ContentLength, RequestURI: r.URL.RequestURI(),
		RemoteAddr: "127.0.0.1:0", TLS: c.tls,
	}
	if in.Method == "" {
		in.Method = http.MethodGet
	}
	if in.Host == "" {
		in.Host = r.URL.Host
	}
	if in.Header == nil {
		in.Header = http.Header{}
	}
	if body == http.NoBody {
		in.ContentLength = 0
	} else if in.ContentLength == 0 {
		in.ContentLength = -1 // unknown: 0 with a body means that to a client
	}
	return in
}
