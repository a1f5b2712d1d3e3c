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

// discoveryTimeout limits a request for /apis/GROUP/VERSION, which is cheap and which every client makes.
const discoveryTimeout = 5 * time.Second

// Request is an authorized request to be proxied to another server.
type Request struct {
	*http.Request
	User *authn.User
	// Streams is set if the request may last as long as the client wants.
	Streams bool
	// AuditID is the request's ID in the audit logs of both servers; "" if it is not audited.
	AuditID string
	// Annotate adds an annotation to the request's event in this server's audit log, if it is audited.
	Annotate func(key, value string)
	// Fail answers the request with an error: a Refusal or one that has a Status.
	Fail func(error)
	// Switched is called after the connection has been upgraded.
	Switched func()
}

// Refusal is an error that is answered as plain text, as kube-aggregator does. Clients derive a Status from the
// code.
type Refusal struct {
	Code int
	Text string
}

// Error implements error.
func (r *Refusal) Error() string { return r.Text }

func unavailable(format string, args ...any) error {
	return &Refusal{http.StatusServiceUnavailable, fmt.Sprintf(format, args...)}
}

// errLoop answers a request that this server has already proxied: an APIService leads back to it.
var errLoop = &Refusal{http.StatusLoopDetected, "the APIService leads back to this server"}

// errRedirect replaces a redirect, which could send the client to an address inside the cluster.
var errRedirect = &Refusal{http.StatusBadGateway,
	"the backend attempted to redirect this request, which is not permitted"}

// Pass proxies the request to the server and the response back. It returns when both are complete or the client
// leaves. A stream also ends when this server stops or when the APIService changes its target.
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
	userHeaders, err := identity(r.User)
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
	target := &url.URL{Scheme: "https", Host: host, Path: r.URL.Path, RawQuery: r.URL.Query().Encode()}
	a.proxy(r, to.link, target, userHeaders).ServeHTTP(w, a.bounded(w, r, ctx))
}

// bounded returns the request with a limit on its body, unless it is a stream.
func (a *Aggregation) bounded(w http.ResponseWriter, r *Request, ctx context.Context) *http.Request {
	out := r.WithContext(ctx)
	if !r.Streams && r.ContentLength != 0 && r.Body != nil {
		out.Body = http.MaxBytesReader(w, r.Body, a.MaxBody)
	}
	return out
}

// proxy returns the reverse proxy for one request.
func (a *Aggregation) proxy(r *Request, through *link, to *url.URL, userHeaders http.Header) *httputil.ReverseProxy {
	transport := http.RoundTripper(through.plain)
	if isUpgrade(r.Header) {
		transport = through.upgrades // HTTP/2 connections cannot be upgraded
	}
	proxy := &httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(pr *httputil.ProxyRequest) {
			a.rewrite(pr, to, userHeaders)
			if r.AuditID != "" {
				pr.Out.Header.Set(auditHeader, r.AuditID)
			}
		},
		ModifyResponse: func(res *http.Response) error {
			if r.AuditID != "" {
				res.Header.Del(auditHeader) // this server has already set it
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

// staysHere reports whether a response does not redirect, or redirects to a newer version of the same OpenAPI
// document.
func staysHere(res *http.Response, path string) bool {
	text := res.Header.Get("Location")
	if text == "" {
		return true
	}
	location, err := url.Parse(text)
	return err == nil && strings.HasPrefix(path, "/openapi/v3/") &&
		location.Scheme == "" && location.Host == "" && location.Path == path
}

// rewrite turns the client's request into one of this server's, made for the user that userHeaders describe.
// ReverseProxy has already removed the headers that the client listed in Connection, so a client cannot remove the
// ones added here.
func (a *Aggregation) rewrite(pr *httputil.ProxyRequest, to *url.URL, userHeaders http.Header) {
	out := pr.Out
	out.URL, out.Host = to, pr.In.Host
	out.Header["X-Forwarded-For"] = pr.In.Header["X-Forwarded-For"]
	pr.SetXForwarded()
	out.Header.Set("X-Forwarded-Uri", pr.In.URL.Path)
	out.Header.Add("Via", fmt.Sprintf("%d.%d %s", pr.In.ProtoMajor, pr.In.ProtoMinor, a.self))
	out.Trailer = nil // a client could repeat a header in it
	hideBearer(out.Header)
	disclaim(out.Header)
	maps.Copy(out.Header, userHeaders)
}

// returned reports whether this server has proxied the request before.
func (a *Aggregation) returned(h http.Header) bool {
	return slices.ContainsFunc(h["Via"], func(via string) bool { return strings.Contains(via, a.self) })
}

// answerTo returns the error to answer when there is no response, or none that may be passed on.
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

// hideBearer removes the token from the WebSocket subprotocols, where browsers send it.
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

// isUpgrade reports whether the client asks to switch its connection to another protocol.
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
