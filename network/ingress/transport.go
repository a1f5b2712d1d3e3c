package ingress

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
)

// maxTries limits the endpoints that a request is tried on.
const maxTries = 3

var (
	errNoEndpoints = errors.New("the backend has no endpoints")
	errTimeout     = errors.New("the endpoint did not respond in time")
)

// dialFunc opens a connection to an endpoint.
type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// dialError is a failure to connect. No part of the request has been sent.
type dialError struct{ error }

// Unwrap returns the cause.
func (e *dialError) Unwrap() error { return e.error }

// transport sends requests to endpoints of their exchange's upstream. It is safe for concurrent use.
type transport struct {
	clock      clock.WithDelayedExecution
	byProtocol [3]*http.Transport
	retries    func() // increments a counter
}

func newTransport(c clock.WithDelayedExecution, dial dialFunc, retries func()) *transport {
	t := &transport{clock: c, retries: retries}
	connect := func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := t.connect(ctx, dial, network, address)
		if err != nil {
			return nil, &dialError{err}
		}
		return conn, nil
	}
	for p := range t.byProtocol {
		var protocols http.Protocols
		protocols.SetHTTP1(protocol(p) != http2ClearText)
		protocols.SetHTTP2(protocol(p) == overTLS)
		protocols.SetUnencryptedHTTP2(protocol(p) == http2ClearText)
		t.byProtocol[p] = &http.Transport{
			DialContext: connect, Protocols: &protocols, DisableCompression: true,
			MaxIdleConns: 4096, MaxIdleConnsPerHost: 256, IdleConnTimeout: time.Minute,
			TLSHandshakeTimeout: 10 * time.Second, MaxResponseHeaderBytes: 256 << 10,
			// Certificates of pods have no common authority; ingress-nginx does not verify them either.
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12},
			ReadBufferSize:  8 << 10, WriteBufferSize: 8 << 10,
		}
	}
	return t
}

// connect dials within the time limit of the request's Ingress.
func (t *transport) connect(ctx context.Context, dial dialFunc, network, address string) (net.Conn, error) {
	limit := defaultSettings.connect
	if x := exchangeOf(ctx); x != nil {
		limit = x.route.settings.connect
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := t.clock.AfterFunc(limit, func() { cancel(errTimeout) })
	defer timer.Stop()
	return dial(ctx, network, address)
}

func (t *transport) close() {
	for _, p := range t.byProtocol {
		p.CloseIdleConnections()
	}
}

// RoundTrip implements http.RoundTripper. It retries a request on another endpoint if no part of it has been sent, or
// if it is idempotent and has no body. It never retries once a response has begun.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	x := exchangeOf(r.Context())
	backends := x.route.upstream.now.Load()
	body := &retryBody{ReadCloser: r.Body}
	var tried []*endpoint
	for {
		e := backends.pick(t.clock.Now().UnixNano(), tried)
		if e == nil {
			return nil, errNoEndpoints
		}
		tried = append(tried, e)
		response, err := t.try(r, x, backends.protocol, e, body)
		if err == nil {
			return response, nil
		}
		if len(tried) == min(maxTries, len(backends.endpoints)) || !mayTryAgain(r, body, err) {
			return nil, err
		}
		t.retries()
	}
}

// try sends a request to one endpoint.
func (t *transport) try(r *http.Request, x *exchange, p protocol, e *endpoint, body *retryBody) (
	*http.Response, error) {
	x.take(e)
	ctx, cancel := context.WithCancelCause(r.Context()) // canceled when the request ends
	timer := t.clock.AfterFunc(x.route.settings.response, func() { cancel(errTimeout) })
	defer timer.Stop()
	out := r.WithContext(ctx)
	url := *r.URL
	url.Scheme, url.Host = "http", e.address
	if p == overTLS {
		url.Scheme = "https"
	}
	out.URL = &url
	if r.Body != nil {
		out.Body = body
	}
	response, err := t.byProtocol[p].RoundTrip(out)
	if err == nil {
		e.reached()
		return response, nil
	}
	if cause := context.Cause(ctx); errors.Is(cause, errTimeout) {
		err = cause
	}
	cancel(nil)
	if errors.As(err, new(*dialError)) && r.Context().Err() == nil {
		e.failed(t.clock.Now().UnixNano())
	}
	return nil, err
}

// idempotent are the idempotent methods of RFC 9110, 9.2.2, except TRACE, which is not served.
var idempotent = []string{http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodPut, http.MethodDelete}

// mayTryAgain reports whether a failed request can be sent again without the risk of executing it twice.
func mayTryAgain(r *http.Request, body *retryBody, err error) bool {
	if r.Context().Err() != nil || body.read.Load() || errors.Is(err, errTimeout) && !errors.As(err, new(*dialError)) {
		return false
	}
	return errors.As(err, new(*dialError)) || r.Body == nil && slices.Contains(idempotent, r.Method)
}

// retryBody is a request's body that a failing transport cannot close, because the next try needs it. The proxy closes
// the real body.
type retryBody struct {
	io.ReadCloser
	read atomic.Bool
}

// Read implements io.Reader.
func (b *retryBody) Read(p []byte) (int, error) {
	b.read.Store(true)
	return b.ReadCloser.Read(p)
}

// Close has no effect.
func (b *retryBody) Close() error { return nil }
