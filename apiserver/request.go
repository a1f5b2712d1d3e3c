package apiserver

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/go-chi/chi/v5"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/audit"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/apiserver/query"
	"github.com/coxswain-dev/coxswain/apiserver/responsewriter"
	"github.com/coxswain-dev/coxswain/storage"
)

// request is one API request on a resource, as read from its route, query and headers. newRequest builds it; it is
// read-only afterwards. The state that changes while it is served is in its exchange.
type request struct {
	*http.Request
	// verb is the API verb: get, list, watch, create, update, patch, delete, deletecollection.
	verb string
	// res is the registration of the resource; nil if the resource is not served.
	res         *api.Resource
	objects     *storage.Collection // nil for kinds that are not stored
	namespace   string
	name        string
	subresource string
	sub         *api.Subresource // nil without one
	query       url.Values
	// out is the negotiated form of the response. A request that connects has none.
	out encoding.Output
	// unadmitted marks a request of the server itself that bypasses admission plugins.
	unadmitted bool
}

// newRequest reads a request on a resource. The route determines the verb, and the subresource if that is not one of
// its parameters. The request is never nil. An error is the answer once the request has been authorized, so that a
// client without a right to a resource does not learn that it does not exist.
func (s *Server) newRequest(hr *http.Request, verb, subresource string) (*request, error) {
	r := &request{Request: hr, verb: verb, subresource: subresource}
	if err := s.resolve(r); err != nil {
		r.res = nil
		return r, err
	}
	if !r.served() {
		return r, apierrors.NewMethodNotSupported(r.res.GroupResource(), r.verb)
	}
	if r.connects() {
		return r, nil
	}
	var err error
	r.out, err = encoding.Negotiate(encoding.Question{Header: r.Header, Query: r.query, Resource: r.res, Verb: r.verb,
		Scale: r.subresource == "scale", NoTable: !r.hasTable()})
	return r, err
}

// object returns the request for one object of the request's collection. It may run in another goroutine if ctx has an
// exchange of its own.
func (r *request) object(ctx context.Context, namespace, name string) *request {
	one := *r
	one.Request, one.namespace, one.name = r.WithContext(ctx), namespace, name
	return &one
}

// update returns a request to update another object as a part of this one, in the same namespace and with the same
// options.
func (r *request) update(res *api.Resource, objects *storage.Collection, name string) *request {
	return &request{Request: r.Request, verb: "update", res: res, objects: objects, namespace: r.namespace, name: name,
		query: r.query}
}

// exchange returns the state of the request.
func (r *request) exchange() *exchange { return exchangeOf(r.Context()) }

// audit returns the record of the request in the audit log, nil if the request is not audited. A nil record may be
// used.
func (r *request) audit() *audit.Request { return r.exchange().Audit() }

// user returns the caller.
func (r *request) user() *authn.User { return authn.UserFrom(r.Context()) }

// isNamespace reports whether the request is on the Namespace kind.
func (r *request) isNamespace() bool { return r.res.Group == "" && r.res.Kind == "Namespace" }

// confidential reports whether the request and its answer carry credentials, which errors must not quote.
func (r *request) confidential() bool {
	return r.res != nil && audit.Confidential(r.res.Group, r.res.Plural, r.subresource)
}

// resource returns the handler of a route to a resource.
func (s *Server) resource(verb string) http.HandlerFunc {
	return func(w http.ResponseWriter, hr *http.Request) {
		if err := s.serveResource(w, hr, verb, ""); err != nil {
			s.writeError(w, hr, err)
		}
	}
}

// serveResource waits for the seats of a request, authorizes it, and answers it.
func (s *Server) serveResource(w http.ResponseWriter, hr *http.Request, verb, subresource string) error {
	r, refusal := s.newRequest(hr, verb, subresource)
	e := r.exchange()
	if r.res != nil {
		e.resolved(r)
	}
	a := attributesOf(r)
	if !r.connects() {
		if err := s.takeSeat(w, hr, &a, r.width(&a)); err != nil {
			return err
		}
	}
	if err := s.authorizeFor(r.Context(), a, e.Audit()); err != nil {
		return err
	}
	if r.res != nil && r.res.Deprecation != "" {
		responsewriter.AddWarnings(w.Header(), []string{r.res.Deprecation})
	}
	if refusal != nil {
		return refusal
	}
	if r.connects() {
		return s.connect(w, r)
	}
	return s.answer(w, r)
}

// answer hands the request to its verb.
func (s *Server) answer(w http.ResponseWriter, r *request) error {
	if r.res.Virtual {
		return s.compute(w, r)
	}
	switch r.verb {
	case "get":
		return s.get(w, r)
	case "list":
		return s.list(w, r)
	case "watch":
		return s.watch(w, r)
	case "create":
		if r.subresource != "" {
			return s.createSubresource(w, r)
		}
		if r.res.CreateOnly {
			return s.review(w, r)
		}
		return s.create(w, r)
	case "update":
		return s.update(w, r)
	case "patch":
		return s.patch(w, r)
	case "delete":
		return s.delete(w, r)
	default:
		return s.deleteCollection(w, r)
	}
}

// resolve reads the route's parameters, as a part of newRequest. The path of a subresource of a namespace has the form
// of a path of a namespaced resource: /api/v1/namespaces/NAME/status.
func (s *Server) resolve(r *request) error {
	route := chi.RouteContext(r.Context())
	gvr := schema.GroupVersionResource{
		Group:    route.URLParam("group"),
		Version:  route.URLParam("version"),
		Resource: route.URLParam("resource"),
	}
	r.namespace, r.name = route.URLParam("namespace"), route.URLParam("name")
	if sub := route.URLParam("subresource"); sub != "" {
		r.subresource = sub
	}
	if gvr.Group == "" && strings.HasPrefix(r.URL.Path, "/apis/") {
		return notFoundPath()
	}
	var err error
	if r.query, err = url.ParseQuery(r.URL.RawQuery); err != nil {
		return apierrors.NewBadRequest("invalid query: " + err.Error())
	}
	if gvr.Group == "" && r.namespace != "" && r.name == "" && slices.Contains(namespaceSubresources, gvr.Resource) {
		r.name, r.subresource = r.namespace, gvr.Resource
		r.namespace, gvr.Resource = "", "namespaces"
		switch r.verb {
		case "list":
			r.verb = "get"
		case "deletecollection":
			r.verb = "delete"
		}
	}
	if r.res = s.served(r.Context(), gvr); r.res == nil {
		return notFoundPath()
	}
	// Over all namespaces, a namespaced kind can only be listed and watched. kube-apiserver answers 405 to other verbs
	// for built-in kinds, which have routes of their own, and 404 for custom ones.
	if r.res.Namespaced != (r.namespace != "") &&
		(!r.res.Namespaced || r.verb != "list" && (r.verb != "watch" || r.name != "")) {
		if r.res.Namespaced && r.name == "" && r.res.Schema == 0 {
			return apierrors.NewMethodNotSupported(r.res.GroupResource(), r.verb)
		}
		return notFoundPath()
	}
	if r.subresource != "" {
		if r.sub = r.res.Subresource(r.subresource); r.sub == nil {
			return notFoundPath()
		}
	}
	if r.verb == "watch" {
		return s.resolveWatch(r)
	}
	if r.verb == "list" && query.Flag(r.query, "watch") {
		r.verb = "watch"
	}
	if !r.res.CreateOnly && !r.res.Virtual {
		r.objects = s.collection(r.res)
	}
	return nil
}

// served returns the registration of a resource, nil if there is none. A resource that is not registered yet may be
// defined by a CustomResourceDefinition that another server has just established.
func (s *Server) served(ctx context.Context, gvr schema.GroupVersionResource) *api.Resource {
	res := s.Registry.Snapshot().Resource(gvr)
	if res == nil && s.definitions != nil && strings.Contains(gvr.Group, ".") && s.definitions.CatchUp(ctx) == nil {
		res = s.Registry.Snapshot().Resource(gvr)
	}
	return res
}

// resolveWatch resolves the deprecated paths of watches, which are older than ?watch=1:
// /api/v1/watch/namespaces/NAMESPACE/pods/NAME.
func (s *Server) resolveWatch(r *request) error {
	r.objects = s.collection(r.res)
	if r.name != "" {
		selector := fields.OneTermEqualSelector("metadata.name", r.name).String()
		if text := r.query.Get("fieldSelector"); text != "" && text != selector {
			return apierrors.NewBadRequest("fieldSelector metadata.name doesn't match requested name")
		}
		r.query.Set("fieldSelector", selector)
	}
	return nil
}

// namespaceSubresources are distinguished from namespaced resources by their names alone.
var namespaceSubresources = []string{"status", "finalize"}

// served reports whether the kind answers the verb, on itself or on the subresource.
func (r *request) served() bool {
	if r.subresource == "" {
		return !slices.Contains(r.res.UnsupportedVerbs, r.verb) &&
			(r.verb == "watch" || (r.name != "") == onObject(r.verb))
	}
	return slices.Contains(r.sub.Verbs, r.verb)
}

// connects reports whether the request is forwarded to a node, pod or service, for as long as it lasts.
func (r *request) connects() bool { return r.sub != nil && r.sub.Connect }

// creates reports whether the kind can be created.
func (r *request) creates() bool { return !slices.Contains(r.res.UnsupportedVerbs, "create") }

// onObject reports whether the verb addresses one object by its name in the path.
func onObject(verb string) bool {
	return verb == "get" || verb == "update" || verb == "patch" || verb == "delete"
}

// collection opens the stored objects of a kind.
func (s *Server) collection(res *api.Resource) *storage.Collection { return s.loopback.Collection(res) }

// key returns the key of an object of the request's kind and namespace.
func (r *request) key(name string) storage.Key {
	return storage.Key{Collection: r.res.Collection(), Namespace: r.namespace, Name: name}
}

// scope returns the objects that the path and the selectors select.
func (r *request) scope() (storage.Scope, error) { return query.Scope(r.query, r.res, r.namespace) }
