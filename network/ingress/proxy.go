package ingress

import (
	"bufio"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
)

// statusClosed is the status of requests that clients abandoned, in the access log and metrics, as in nginx.
const statusClosed = 499

// proxy serves requests by the current table. It is safe for concurrent use.
type proxy struct {
	table     atomic.Pointer[table]
	clock     clock.PassiveClock
	log       *slog.Logger
	access    *accessLog // or nil
	metrics   *metrics
	trusted   []netip.Prefix
	httpsPort string // in redirects; empty for 443
	bodyRead  time.Duration

	reverse  *httputil.ReverseProxy
	draining atomic.Bool
	inFlight *count
}

// count is a number of requests with a wait for zero. Unlike with a sync.WaitGroup, requests may begin during the wait.
type count struct {
	mu   sync.Mutex
	n    int
	zero *sync.Cond
}

func newCount() *count {
	c := &count{}
	c.zero = sync.NewCond(&c.mu)
	return c
}

func (c *count) add(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n += n; c.n == 0 {
		c.zero.Broadcast()
	}
}

func (c *count) wait() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.n > 0 {
		c.zero.Wait()
	}
}

// exchange is the state of one request. Only the request's goroutine may use it.
type exchange struct {
	route     *route
	endpoint  *endpoint // the last one that was tried, or nil
	requestID string
	status    int // of the proxy's own response, for the log
	client    context.Context
}

type exchangeKey struct{}

func exchangeOf(ctx context.Context) *exchange {
	x, _ := ctx.Value(exchangeKey{}).(*exchange)
	return x
}

// take counts the request as in progress at an endpoint, instead of at the previous one.
func (x *exchange) take(e *endpoint) {
	x.leave()
	x.endpoint = e
	e.outstanding.Add(1)
}

func (x *exchange) leave() {
	if x.endpoint != nil {
		x.endpoint.outstanding.Add(-1)
	}
}

func newProxy(o Options, rt http.RoundTripper, m *metrics, access *accessLog) *proxy {
	p := &proxy{clock: o.Clock, log: o.Log, access: access, metrics: m, trusted: o.TrustedProxies,
		bodyRead: o.BodyTimeout, inFlight: newCount()}
	if a, ok := addressOf(o.HTTPS); ok && a.Port != 443 && !o.HideHTTPSPort {
		p.httpsPort = portText(a)
	}
	p.reverse = &httputil.ReverseProxy{
		Rewrite: p.rewrite, Transport: rt, ErrorHandler: p.failed,
		BufferPool: &buffers{},
		ErrorLog:   slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
	}
	return p
}

// ServeHTTP implements http.Handler.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.inFlight.add(1)
	defer p.inFlight.add(-1)
	began := p.clock.Now()
	recorded := &recorder{ResponseWriter: w}
	x := &exchange{client: r.Context()}
	defer func() {
		x.leave()
		p.finished(r, x, recorded, began)
	}()
	if p.draining.Load() && r.ProtoMajor == 1 {
		w.Header().Set("Connection", "close")
	}
	p.serve(recorded, r, x)
}

func (p *proxy) serve(w http.ResponseWriter, r *http.Request, x *exchange) {
	if r.Method == http.MethodConnect || r.Method == http.MethodTrace {
		refuse(w, http.StatusMethodNotAllowed)
		return
	}
	x.route = p.table.Load().match(hostOf(r.Host), requestPath(r.URL.Path))
	switch {
	case x.route == nil:
		refuse(w, http.StatusNotFound)
	case x.route.redirect && !p.secure(r):
		p.redirect(w, r)
	case x.route.upstream == nil:
		refuse(w, http.StatusServiceUnavailable)
	default:
		p.forward(w, r, x)
	}
}

// forward sends the request to an endpoint, and the response to the client.
func (p *proxy) forward(w http.ResponseWriter, r *http.Request, x *exchange) {
	if limit := x.route.settings.bodySize; limit > 0 {
		if r.ContentLength > limit {
			w.Header().Set("Connection", "close") // the body is not read
			refuse(w, http.StatusRequestEntityTooLarge)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, limit)
	}
	if r.ContentLength != 0 {
		r.Body = &patientBody{ReadCloser: r.Body, control: http.NewResponseController(w), limit: p.bodyRead}
	}
	p.reverse.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), exchangeKey{}, x)))
}

// redirect redirects the client to HTTPS, with the status code of RFC 9110 that keeps method and body.
func (p *proxy) redirect(w http.ResponseWriter, r *http.Request) {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
		if strings.Contains(h, ":") {
			host = "[" + h + "]"
		}
	}
	if p.httpsPort != "" {
		host += ":" + p.httpsPort
	}
	target := *r.URL
	target.Scheme, target.Host, target.User = "https", host, nil
	w.Header().Set("Location", target.String())
	w.WriteHeader(http.StatusPermanentRedirect)
}

// failed responds to a request that no endpoint has answered.
func (p *proxy) failed(w http.ResponseWriter, r *http.Request, err error) {
	x := exchangeOf(r.Context())
	status := http.StatusBadGateway
	switch tooLarge := (*http.MaxBytesError)(nil); {
	case x.client.Err() != nil:
		x.status = statusClosed
		status = http.StatusBadGateway // no client reads it
	case errors.As(err, &tooLarge):
		status = http.StatusRequestEntityTooLarge
	case errors.Is(err, errNoEndpoints):
		status = http.StatusServiceUnavailable
	case errors.Is(err, errTimeout):
		status = http.StatusGatewayTimeout
	}
	p.log.Debug("failed to forward a request", "ingress", x.route.ingress, "host", x.route.host, "status", status,
		"err", err)
	refuse(w, status)
}

// refuse responds with a status and its name.
func refuse(w http.ResponseWriter, status int) {
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(http.StatusText(status) + "\n")) // the client may have disconnected
}

// finished records a request in metrics and the access log.
func (p *proxy) finished(r *http.Request, x *exchange, w *recorder, began time.Time) {
	status := w.status
	if x.status != 0 {
		status = x.status
	}
	if status == 0 {
		status = http.StatusOK
	}
	took := p.clock.Since(began)
	p.metrics.observe(r.Method, x.route, status, took, w.written)
	p.access.write(r, x, status, w.written, took)
}

// recorder records the status and size of a response. If the size of the body is declared, it sends each part of the
// body at once; otherwise httputil.ReverseProxy does. A body that arrives in one part is sent in one piece with its
// header, which ReverseProxy's FlushInterval does not do.
type recorder struct {
	http.ResponseWriter
	status   int
	declared int64 // Content-Length, or 0
	written  int64
}

// Unwrap makes the underlying writer available to http.ResponseController.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *recorder) WriteHeader(status int) {
	if w.status == 0 && (status >= http.StatusOK || status == http.StatusSwitchingProtocols) {
		w.status = status
		w.declared, _ = strconv.ParseInt(w.Header().Get("Content-Length"), 10, 64)
	}
	w.ResponseWriter.WriteHeader(status)
}

// Hijack implements http.Hijacker. If an endpoint switches protocols, httputil.ReverseProxy takes over the connection
// and writes to it directly.
func (w *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		w.status = http.StatusSwitchingProtocols
	}
	return conn, buffered, err
}

// Write implements io.Writer.
func (w *recorder) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(p)
	w.written += int64(n)
	if err == nil && w.written < w.declared {
		err = http.NewResponseController(w.ResponseWriter).Flush()
	}
	return n, err
}

// buffers are reused to copy responses.
type buffers struct{ pool sync.Pool }

const bufferSize = 32 << 10

// Get implements httputil.BufferPool.
func (b *buffers) Get() []byte {
	if buffer, ok := b.pool.Get().(*[bufferSize]byte); ok {
		return buffer[:]
	}
	return make([]byte, bufferSize)
}

// Put implements httputil.BufferPool.
func (b *buffers) Put(buffer []byte) { b.pool.Put((*[bufferSize]byte)(buffer)) }
