package apiserver

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Some subresources are not read or written but connected to: the request goes on to a
// node's agent, a pod or a service, and what comes back goes to the client as it is.
// WebSocket and SPDY are upgrades of the connection, which is then a pipe: what is spoken
// over it is between the client and the agent.

// proxyVerbs are the methods that are sent on, and what a role must allow for each.
var proxyVerbs = map[string]string{
	http.MethodGet: "get", http.MethodHead: "get", http.MethodOptions: "get", http.MethodPost: "create",
	http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete",
}

// proxied is resource for the paths below …/proxy.
func (s *Server) proxied(verb string) http.HandlerFunc {
	return func(w http.ResponseWriter, hr *http.Request) {
		r := &request{Request: hr, verb: verb, subresource: "proxy"}
		if err := s.serveResource(w, r); err != nil {
			s.writeError(w, r, err)
		}
	}
}

// connect answers a request on such a subresource.
func (s *Server) connect(w http.ResponseWriter, r *request) error {
	if err := s.authorizeUpgrade(r); err != nil {
		return err
	}
	method := r.verb
	r.verb = "connect"
	if r.subresource != "log" {
		if err := s.admitConnect(r); err != nil {
			return err
		}
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // see limitBody
	switch r.subresource {
	case "log":
		return s.podLog(w, r)
	case "exec", "attach", "portforward":
		return s.podStream(w, r)
	case "proxy":
		return s.proxy(w, r)
	}
	return apierrors.NewMethodNotSupported(r.res.GroupResource(), method)
}

// authorizeUpgrade asks of who opens a stream by GET, as WebSockets are opened, that he may
// create it too: a role that reads pods and all below them must not run commands in them.
func (s *Server) authorizeUpgrade(r *request) error {
	if r.verb != "get" || r.res.Plural != "pods" || r.subresource == "log" || r.subresource == "proxy" {
		return nil
	}
	a := attributesOf(r)
	a.Verb = "create"
	return s.authorize(r.Context(), a)
}

// passage is one request on its way to what is behind the server.
type passage struct {
	to        *url.URL
	transport http.RoundTripper
	// check, when not nil, has a look at the response; its error is the answer.
	check func(*http.Response) error
	// failed makes the answer of why nothing came back.
	failed func(error) error
	// host is the Host header; "" is that of to.
	host string
	// node is whose agent it goes to; "" where it does not go to one.
	node string
}

// pass sends the request on, and the response back, until both are done or the server stops.
func (s *Server) pass(w http.ResponseWriter, r *request, p passage) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.drain, cancel)()
	proxy := &httputil.ReverseProxy{
		Transport: p.transport,
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.Out.URL, pr.Out.Host = p.to, p.host
			pr.Out.Header["X-Forwarded-For"] = pr.In.Header["X-Forwarded-For"]
			pr.SetXForwarded()
			pr.Out.Header.Set("X-Forwarded-Uri", pr.In.URL.Path)
			// Who the client is has been found out; the credential is not for those behind.
			pr.Out.Header.Del("Authorization")
			hideBearer(pr.Out.Header)
			pr.Out.Header.Del(nodeHeader) // it is not for clients to say
			if p.node != "" {
				pr.Out.Header.Set(nodeHeader, p.node)
			}
		},
		ModifyResponse: func(res *http.Response) error {
			if res.StatusCode == http.StatusSwitchingProtocols {
				observed(w).code = res.StatusCode
			}
			if p.check != nil {
				return p.check(res)
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			if _, ok := err.(apierrors.APIStatus); !ok {
				err = p.failed(err)
			}
			s.writeError(w, r, err)
		},
		ErrorLog: s.debugLog(),
	}
	proxy.ServeHTTP(w, r.Request.WithContext(ctx))
}

// hideBearer takes a token out of the WebSocket's subprotocols, where browsers put it.
func hideBearer(h http.Header) {
	const name, prefix = "Sec-Websocket-Protocol", "base64url.bearer.authorization.k8s.io."
	values := h.Values(name)
	if len(values) == 0 {
		return
	}
	var protocols []string
	for protocol := range strings.SplitSeq(strings.Join(values, ","), ",") {
		if protocol = strings.TrimSpace(protocol); !strings.HasPrefix(protocol, prefix) {
			protocols = append(protocols, protocol)
		}
	}
	h.Set(name, strings.Join(protocols, ", "))
}

// backendRefusal turns what an agent says instead of what was asked for into a Status.
func backendRefusal(res *http.Response, method string, resource schema.GroupResource, name string) error {
	if res.StatusCode < 300 {
		return nil
	}
	const limit = 50 << 10
	body, err := io.ReadAll(io.LimitReader(res.Body, limit))
	_ = res.Body.Close()
	if err != nil {
		return err
	}
	text := string(body)
	switch {
	case res.StatusCode < 400:
		return statusError(http.StatusBadGateway, "BadGateway", "the backend attempted to redirect this request, which is not permitted")
	case res.StatusCode == http.StatusInternalServerError:
		return apierrors.NewInternalError(fmt.Errorf("%s", text))
	case res.StatusCode == http.StatusBadRequest:
		return apierrors.NewBadRequest(text)
	}
	return apierrors.NewGenericServerResponse(res.StatusCode, method, resource, name, text, 0, true)
}

// isUpgrade reports whether the client wants another protocol on its connection.
func isUpgrade(r *http.Request) bool {
	for _, value := range r.Header.Values("Connection") {
		for part := range strings.SplitSeq(value, ",") {
			if strings.EqualFold(strings.TrimSpace(part), "upgrade") {
				return true
			}
		}
	}
	return false
}

// connected are the subresources that are connected to, by the resources that have them.
var connected = map[string][]string{
	"pods":     {"attach", "exec", "log", "portforward", "proxy"},
	"services": {"proxy"},
	"nodes":    {"proxy"},
}

// isConnectPath reports whether a path is one that is connected to, for as long as the client
// likes: /api/v1/namespaces/NAMESPACE/pods/NAME/exec, /api/v1/nodes/NAME/proxy/PATH.
func isConnectPath(path string) bool {
	rest, ok := strings.CutPrefix(path, "/api/v1/")
	if !ok {
		return false
	}
	if below, ok := strings.CutPrefix(rest, "namespaces/"); ok {
		if _, rest, ok = strings.Cut(below, "/"); !ok {
			return false
		}
	}
	parts := strings.SplitN(rest, "/", 4)
	return len(parts) >= 3 && slices.Contains(connected[parts[0]], parts[2])
}
