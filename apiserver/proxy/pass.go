package proxy

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/apiserver/status"
)

// passage describes how one request is forwarded.
type passage struct {
	target    *url.URL
	transport http.RoundTripper
	// check inspects the response, if it is not nil. An error replaces the response.
	check func(*http.Response) error
	// failed returns the error for the client if no response came back.
	failed func(error) error
	// host is the Host header; "" is the target's.
	host string
	// node is the name of the node if the request goes to its agent, "" otherwise.
	node string
}

// pass forwards the request, and the response back, until both are done or the server stops.
func (px *Proxy) pass(w http.ResponseWriter, r *Request, via passage) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(px.drain, cancel)()
	proxy := &httputil.ReverseProxy{
		Transport: via.transport,
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.Out.URL, pr.Out.Host = via.target, via.host
			pr.Out.Header["X-Forwarded-For"] = pr.In.Header["X-Forwarded-For"]
			pr.SetXForwarded()
			pr.Out.Header.Set("X-Forwarded-Uri", pr.In.URL.Path)
			// The client is authenticated; its credential is not for the backend.
			pr.Out.Header.Del("Authorization")
			hideBearer(pr.Out.Header)
			pr.Out.Header.Del(nodeHeader) // clients may not set it
			if via.node != "" {
				pr.Out.Header.Set(nodeHeader, via.node)
			}
		},
		ModifyResponse: func(res *http.Response) error {
			if res.StatusCode == http.StatusSwitchingProtocols {
				r.Switched()
			}
			if via.check != nil {
				return via.check(res)
			}
			return nil
		},
		ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, err error) {
			if _, ok := err.(apierrors.APIStatus); !ok {
				err = via.failed(err)
			}
			r.Fail(r.Request, err)
		},
		ErrorLog: px.log,
	}
	proxy.ServeHTTP(w, r.Request.WithContext(ctx))
}

// hideBearer removes a token from the WebSocket's subprotocols, where browsers put it.
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

// backendRefusal converts an agent's error response to a Status.
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
		return status.Error(http.StatusBadGateway, "BadGateway",
			"the backend attempted to redirect this request, which is not permitted")
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

// connected lists the subresources that are connected to, by resource.
var connected = map[string][]string{
	"pods":     {"attach", "exec", "log", "portforward", "proxy"},
	"services": {"proxy"},
	"nodes":    {"proxy"},
}

// Connects reports whether requests to a path are connected and thus unlimited in time:
// /api/v1/namespaces/NAMESPACE/pods/NAME/exec, /api/v1/nodes/NAME/proxy/PATH.
func Connects(path string) bool {
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
