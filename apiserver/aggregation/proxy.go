package aggregation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/status"
	"github.com/coxswain-dev/coxswain/apiserver/x509metrics"
)

const auditHeader = "Audit-Id"

// discoveryTimeout bounds a request for /apis/GROUP/VERSION, which every client makes and which is cheap.
const discoveryTimeout = 5 * time.Second

// Request is an authorized request on its way to another server.
type Request struct {
	*http.Request
	User *authn.User
	// Streams says that it may go on for as long as the client likes.
	Streams bool
	// AuditID is the request's in this server's audit log, and is to be its in the other one's; "" if there is none.
	AuditID string
	// Annotate adds to its event in this server's audit log, if there is one.
	Annotate func(key, value string)
	// Fail answers with an error instead: a Refusal, or one that has a Status.
	Fail func(error)
	// Switched is called when the connection has been upgraded.
	Switched func()
}

// Refusal is an error that is answered as plain text, as kube-aggregator does. Clients make a Status of the code.
type Refusal struct {
	Code int
	Text string
}

// Error implements error.
func (r *Refusal) Error() string { return r.Text }

func unavailable(format string, args ...any) error {
	return &Refusal{http.StatusServiceUnavailable, fmt.Sprintf(format, args...)}
}

// errLoop is the answer to a request that has come back: its APIService leads to this server.
var errLoop = &Refusal{http.StatusLoopDetected, "the APIService leads back to this server"}

// errRedirect is the answer instead of a redirect, which would lead the client to an address of the cluster's own.
var errRedirect = &Refusal{http.StatusBadGateway,
	"the backend attempted to redirect this request, which is not permitted"}

// Pass sends the request on, and the response back, until both are done, the client leaves, or, for a stream, the
// server stops or the APIService leads elsewhere.
func (a *Aggregation) Pass(w http.ResponseWriter, r *Request, to *Service) {
	if a.returned(r.Header) {
		r.Fail(errLoop)
		return
	}
	if !to.Available {
		r.Fail(unavailable("service unavailable"))
		return
	}
	if to.link.err != nil {
		r.Fail(&Refusal{http.StatusInternalServerError, to.link.err.Error()})
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	if strings.Count(strings.Trim(r.URL.Path, "/"), "/") == 2 {
		var end context.CancelFunc
		ctx, end = context.WithTimeout(ctx, discoveryTimeout)
		defer end()
	}
	if r.Streams {
		defer context.AfterFunc(a.Drain, cancel)()
		defer context.AfterFunc(to.link.open, cancel)()
	}
	as, err := identity(r.User)
	if err != nil {
		r.Fail(apierrors.NewBadRequest(err.Error()))
		return
	}
	host, err := to.link.address(ctx)
	if err != nil {
		a.Log.Warn("an APIService's endpoint cannot be found", "name", to.Name, "error", err)
		r.Fail(unavailable("service unavailable"))
		return
	}
	at := &url.URL{Scheme: "https", Host: host, Path: r.URL.Path, RawQuery: r.URL.Query().Encode()}
	a.proxy(r, to.link, at, as).ServeHTTP(w, a.bounded(w, r, ctx))
}

// bounded is the request with the limits of its body.
func (a *Aggregation) bounded(w http.ResponseWriter, r *Request, ctx context.Context) *http.Request {
	out := r.WithContext(ctx)
	if !r.Streams && r.ContentLength != 0 && r.Body != nil {
		out.Body = http.MaxBytesReader(w, r.Body, a.MaxBody)
	}
	return out
}

// proxy passes one request on.
func (a *Aggregation) proxy(r *Request, through *link, to *url.URL, as http.Header) *httputil.ReverseProxy {
	transport := http.RoundTripper(through.plain)
	if isUpgrade(r.Header) {
		transport = through.upgrades // no HTTP/2 connection can be upgraded
	}
	proxy := &httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(pr *httputil.ProxyRequest) {
			a.rewrite(pr, to, as)
			if r.AuditID != "" {
				pr.Out.Header.Set(auditHeader, r.AuditID)
			}
		},
		ModifyResponse: func(res *http.Response) error {
			if r.AuditID != "" {
				res.Header.Del(auditHeader) // the client has it from this server
			}
			if res.StatusCode == http.StatusSwitchingProtocols {
				r.Switched()
			}
			if res.StatusCode >= 300 && res.StatusCode < 400 && !staysHere(res, r.URL.Path) {
				return errRedirect
			}
			return nil
		},
		ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, err error) {
			a.refused.Count(err)
			if key, reason := x509metrics.Annotation(err, to.Hostname()); key != "" {
				r.Annotate(key, reason)
			}
			r.Fail(answerTo(r, err))
		},
		ErrorLog: slog.NewLogLogger(a.Log.Handler(), slog.LevelDebug),
	}
	if r.Streams {
		proxy.FlushInterval = -1
	}
	return proxy
}

// staysHere reports whether a response is no redirect, or one to a newer content of an OpenAPI document.
func staysHere(res *http.Response, path string) bool {
	text := res.Header.Get("Location")
	if text == "" {
		return true
	}
	to, err := url.Parse(text)
	return err == nil && strings.HasPrefix(path, "/openapi/v3/") && to.Scheme == "" && to.Host == "" && to.Path == path
}

// rewrite makes the request one of this server's, for the user that as says. Headers that the client has named in
// Connection are gone by now, so that it can't remove those that are added here.
func (a *Aggregation) rewrite(pr *httputil.ProxyRequest, to *url.URL, as http.Header) {
	out := pr.Out
	out.URL, out.Host = to, pr.In.Host
	out.Header["X-Forwarded-For"] = pr.In.Header["X-Forwarded-For"]
	pr.SetXForwarded()
	out.Header.Set("X-Forwarded-Uri", pr.In.URL.Path)
	out.Header.Add("Via", fmt.Sprintf("%d.%d %s", pr.In.ProtoMajor, pr.In.ProtoMinor, a.self))
	out.Trailer = nil // in which a client could repeat a header
	hideBearer(out.Header)
	disclaim(out.Header)
	maps.Copy(out.Header, as)
}

// returned reports whether this server has passed the request on before.
func (a *Aggregation) returned(h http.Header) bool {
	return slices.ContainsFunc(h["Via"], func(via string) bool { return strings.Contains(via, a.self) })
}

// answerTo is the answer to a request that got none, or one that is not passed back.
func answerTo(r *Request, err error) error {
	var refusal *Refusal
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &refusal):
		return refusal
	case errors.As(err, &tooLarge):
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", tooLarge.Limit))
	case errors.Is(r.Context().Err(), context.DeadlineExceeded):
		return status.Error(http.StatusGatewayTimeout, "Timeout",
			"Timeout: request did not complete within the allotted timeout")
	}
	return unavailable("error trying to reach service: %v", err)
}

// hideBearer removes a token from the WebSocket's subprotocols, where browsers put it.
func hideBearer(h http.Header) {
	const name, prefix = "Sec-Websocket-Protocol", "base64url.bearer.authorization.k8s.io."
	if len(h[name]) == 0 {
		return
	}
	var protocols []string
	for protocol := range strings.SplitSeq(strings.Join(h[name], ","), ",") {
		if protocol = strings.TrimSpace(protocol); !strings.HasPrefix(protocol, prefix) {
			protocols = append(protocols, protocol)
		}
	}
	h.Set(name, strings.Join(protocols, ", "))
}

// isUpgrade reports whether the client wants another protocol on its connection.
func isUpgrade(h http.Header) bool {
	for _, value := range h["Connection"] {
		for part := range strings.SplitSeq(value, ",") {
			if strings.EqualFold(strings.TrimSpace(part), "upgrade") {
				return true
			}
		}
	}
	return false
}
