// Package inprocess carries HTTP requests to a handler of the same process, without connections: no handshakes, no
// buffers, and one goroutine for a request, the one that runs its handler.
//
// In all else it behaves like a connection. The handler gets its own copy of the client's request, with the
// client's certificate as if TLS had verified that the client has its key. The answer arrives as it is written and
// flushed. Each side learns when the other one has left. While no handler serves, clients are refused.
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

// Server passes requests to a handler between Serve and its end. Its zero value refuses them. Its methods are safe
// for concurrent use.
type Server struct {
	// ConnContext is http.Server's, without a connection: it adds values about the client to the context of the
	// client's requests. It may be nil.
	ConnContext func(ctx context.Context) context.Context

	mu   sync.Mutex
	life *life // nil while no handler serves; guarded by mu
}

// life is the time from one Serve to its end.
type life struct {
	handler http.Handler
	ctx     context.Context // canceled when the grace is over: it ends the remaining requests
	running sync.WaitGroup  // the requests under way
}

// Serve passes requests to a handler until end is called. Requests after that are refused. The ones under way may
// finish within a grace period, and are cut then. end returns when none is left.
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

// begin returns the present life, with one more request under way; nil if no handler serves. The caller must call
// running.Done when the request is done.
func (s *Server) begin() *life {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life != nil {
		s.life.running.Add(1)
	}
	return s.life
}

// Client returns the transport of a client that has presented these certificates, its own first.
func (s *Server) Client(certificates ...*x509.Certificate) *Client {
	return &Client{server: s, tls: &tls.ConnectionState{Version: tls.VersionTLS13, HandshakeComplete: true,
		NegotiatedProtocol: "h2", PeerCertificates: certificates}}
}

// Client is an http.RoundTripper. Its methods are safe for concurrent use.
type Client struct {
	server *Server
	tls    *tls.ConnectionState

	mu   sync.Mutex
	life *life
	conn context.Context // the context of requests in that life
}

// CloseIdleConnections does nothing, since there are no connections.
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
		_ = body.Close() // a RoundTripper must close the body
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

// context returns the context of a client's requests in one life of the server, as a connection would have one.
func (c *Client) context(l *life) context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.life != l {
		c.life, c.conn = l, l.ctx
		if c.server.ConnContext != nil {
			c.conn = c.server.ConnContext(l.ctx)
		}
	}
	return c.conn
}

// received returns a request as a server receives it.
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
		in.ContentLength = -1 // unknown: a client means that by 0 with a body
	}
	return in
}
