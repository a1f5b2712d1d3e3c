package apiserver

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/go-chi/chi/v5"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/apiserver/admission"
	"github.com/coxswain-dev/coxswain/apiserver/metrics"
	"github.com/coxswain-dev/coxswain/apiserver/proxy"
	"github.com/coxswain-dev/coxswain/apiserver/responsewriter"
)

// A request to some subresources is a connection: the server authorizes and admits it, and package proxy forwards it to
// a node's agent, a pod or a service.

// proxyVerbs maps the methods that are forwarded to the verbs that a role must allow.
var proxyVerbs = map[string]string{
	http.MethodGet: "get", http.MethodHead: "get", http.MethodOptions: "get", http.MethodPost: "create",
	http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete",
}

// proxied returns the handler of the paths below …/proxy.
func (s *Server) proxied(verb string) http.HandlerFunc {
	return func(w http.ResponseWriter, hr *http.Request) {
		if err := s.serveResource(w, hr, verb, "proxy"); err != nil {
			s.writeError(w, hr, err)
		}
	}
}

// connect forwards a request, and returns when the connection has ended.
func (s *Server) connect(w http.ResponseWriter, r *request) error {
	if err := s.authorizeUpgrade(r); err != nil {
		return err
	}
	e := r.exchange()
	e.labels.Verb = metrics.Verb("connect")
	path := chi.URLParam(r.Request, "*")
	query, path, err := s.admitConnect(r, path)
	if err != nil {
		return err
	}
	if e.write != nil {
		responsewriter.AddWarnings(w.Header(), e.write.warnings)
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // see limitBody
	return s.proxy.Serve(w, &proxy.Request{
		Request: r.Request, Resource: r.res, Namespace: r.namespace, Name: r.name, Subresource: r.subresource,
		Query: query, Path: path,
		Fail:     func(hr *http.Request, err error) { s.writeError(w, hr, err) },
		Switched: func() { e.Answered(http.StatusSwitchingProtocols) },
	})
}

// admitConnect calls the plugins for the options of a request that is forwarded to a pod, a service or a node. A
// request for a log has no options, and is not admitted. It returns the query and the path to forward, since a webhook
// may have changed the options.
func (s *Server) admitConnect(r *request, path string) (url.Values, string, error) {
	sub := r.sub
	if sub.ConnectOptions == nil {
		return r.query, path, nil
	}
	a := s.attributes(beginWrite(r, nil), admission.Connect, nil, nil)
	a.Kind = schema.GroupVersionKind{Group: sub.Group, Version: sub.Version, Kind: sub.Kind}
	a.Document = sub.ConnectOptions(r.query, path)
	a.Document["apiVersion"], a.Document["kind"] = a.Kind.GroupVersion().String(), sub.Kind
	if err := s.admitAlone(r.Context(), &a); err != nil {
		return nil, "", err
	}
	if !a.Rewritten() {
		return r.query, path, nil
	}
	query, path := connectQuery(a.Document)
	return query, path, nil
}

// connectQuery returns the query, and the path of a proxied request, that express these options.
func connectQuery(options map[string]any) (query url.Values, path string) {
	query = url.Values{"stdin": {"false"}, "stdout": {"false"}, "stderr": {"false"}, "tty": {"false"}}
	for name, value := range options {
		switch v := value.(type) {
		case bool:
			query.Set(name, strconv.FormatBool(v))
		case string:
			query.Set(name, v)
		case []any:
			for _, element := range v {
				query.Add(name, fmt.Sprint(element))
			}
		}
	}
	path = query.Get("path")
	query.Del("apiVersion")
	query.Del("kind")
	return query, path
}

// authorizeUpgrade requires the right to create from a client that opens a stream by GET, as WebSockets do: a role that
// may read pods and their subresources must not run commands in them.
func (s *Server) authorizeUpgrade(r *request) error {
	if r.verb != "get" || r.res.Plural != "pods" || r.subresource == "log" || r.subresource == "proxy" {
		return nil
	}
	a := attributesOf(r)
	a.Verb = "create"
	return s.authorize(r.Context(), a)
}
