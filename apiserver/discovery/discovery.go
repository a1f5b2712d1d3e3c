// Package discovery serves the documents that describe the API: which groups, versions and kinds there are (discovery,
// for clients that ask for it as one aggregated document, KEP-3352), and their schemas (OpenAPI). The documents are
// made by api/discoverydocs and api/openapi. They include the groups and versions of other API servers, as package
// aggregation has read them.
//
// A request that has been authorized comes in; the answer goes out through Options.WriteBody. The server must not be
// imported.
package discovery

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/go-chi/chi/v5"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/discoverydocs"
	"github.com/coxswain-dev/coxswain/api/openapi"
	"github.com/coxswain-dev/coxswain/apiserver/aggregation"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/apiserver/status"
)

// Options assemble Handlers. All fields except Aggregation are required.
type Options struct {
	Registry *api.Registry
	// Version is the server's version, which OpenAPI documents have.
	Version string
	// Aggregation knows the API servers that serve other groups; nil if there are none.
	Aggregation *aggregation.Aggregation
	// Settle waits until the registry has the kinds of all definitions in memory, so that a client that has seen a
	// definition become established finds its kind.
	Settle func(ctx context.Context) error
	// WriteBody answers a request with a body.
	WriteBody func(w http.ResponseWriter, r *http.Request, out encoding.Output, code int, body []byte) error
	// Pass passes a request on to another API server.
	Pass func(w http.ResponseWriter, r *http.Request, to *aggregation.Service)
}

// Handlers answer requests for documents. An error that a handler returns is the answer. They are safe for concurrent
// use.
type Handlers struct {
	o    Options
	docs *openapi.Documents
	own  ownKinds
}

// New returns handlers that have made no document yet.
func New(o Options) *Handlers { return &Handlers{o: o, docs: openapi.NewDocuments(o.Version)} }

// Forget drops the documents of kinds that the registry no longer has.
func (h *Handlers) Forget() { h.docs.Forget(h.o.Registry.Snapshot()) }

// kinds returns the kinds to show: the registry's and all that definitions in memory define.
func (h *Handlers) kinds(r *http.Request) *api.Snapshot {
	_ = h.o.Settle(r.Context()) // an error means that the request has ended
	return h.o.Registry.Snapshot()
}

// Versions answers a GET of /api.
func (h *Handlers) Versions(w http.ResponseWriter, r *http.Request) error {
	snapshot := h.kinds(r)
	if media := encoding.NegotiateDiscovery(r.Header.Get("Accept")); media != "" {
		return h.writeAggregated(w, r, media, discoverydocs.AggregatedCore(snapshot))
	}
	return h.writeDiscovery(w, r, discoverydocs.Versions(snapshot, r.Host))
}

// Groups answers a GET of /apis.
func (h *Handlers) Groups(w http.ResponseWriter, r *http.Request) error {
	snapshot := h.kinds(r)
	if media := encoding.NegotiateDiscovery(r.Header.Get("Accept")); media != "" {
		external := h.o.Aggregation.Discovery(r.Context(), r.Header)
		return h.writeAggregated(w, r, media,
			discoverydocs.AggregatedGroups(snapshot, h.o.Aggregation.Registrations(), external))
	}
	return h.writeDiscovery(w, r, discoverydocs.Groups(snapshot, h.o.Aggregation.Registrations()))
}

// Group answers a GET of one group: /apis/apps.
func (h *Handlers) Group(w http.ResponseWriter, r *http.Request) error {
	group := discoverydocs.Group(h.kinds(r), h.o.Aggregation.Registrations(), chi.URLParam(r, "group"))
	if group == nil {
		return status.NotServed()
	}
	return h.writeDiscovery(w, r, group)
}

// Resources answers a GET of one group and version: /apis/apps/v1.
func (h *Handlers) Resources(w http.ResponseWriter, r *http.Request) error {
	gv := schema.GroupVersion{Group: chi.URLParam(r, "group"), Version: chi.URLParam(r, "version")}
	list := discoverydocs.Resources(h.kinds(r), gv)
	if list == nil || gv.Group == "" && strings.HasPrefix(r.URL.Path, "/apis/") {
		return status.NotServed()
	}
	return h.writeDiscovery(w, r, list)
}

// writeDiscovery answers with a document in the media type that the client prefers.
func (h *Handlers) writeDiscovery(w http.ResponseWriter, r *http.Request, doc runtime.Object) error {
	media, err := encoding.NegotiateDocument(r.Header.Get("Accept"))
	if err != nil {
		return err
	}
	out := output(r, media)
	body, err := out.Value("v1", doc.GetObjectKind().GroupVersionKind().Kind, doc)
	if err != nil {
		return fmt.Errorf("encode discovery: %w", err)
	}
	return h.o.WriteBody(w, r, out, http.StatusOK, body)
}

// output returns the form of an answer in a media type.
func output(r *http.Request, media string) encoding.Output {
	return encoding.Output{Media: media, Gzip: encoding.AcceptsGzip(r.Header),
		Pretty: encoding.WantsPretty(r.Header, r.URL.Query())}
}

// writeAggregated answers with an aggregated discovery document, or with 304.
func (h *Handlers) writeAggregated(w http.ResponseWriter, r *http.Request, media string, list any) error {
	body, err := json.Marshal(list)
	if err != nil {
		return fmt.Errorf("encode discovery: %w", err)
	}
	hash, err := discoverydocs.Hash(list)
	if err != nil {
		return err
	}
	if notModified(w, r, hash) {
		return nil
	}
	return h.o.WriteBody(w, r, output(r, media), http.StatusOK, body)
}

// documented returns the kinds that this server documents itself: all that no other server serves.
func (h *Handlers) documented(r *http.Request) *api.Snapshot {
	snapshot, elsewhere := h.kinds(r), h.o.Aggregation.Registrations()
	if elsewhere == nil {
		return snapshot
	}
	return h.own.without(snapshot, elsewhere)
}

// ownKinds caches the last snapshot without the kinds that other servers serve. Documents are kept as long as the
// snapshot is the same.
type ownKinds struct {
	mu sync.Mutex
	// own is whole without the kinds of elsewhere. mu guards all three.
	whole     *api.Snapshot
	elsewhere *discoverydocs.Registrations
	own       *api.Snapshot
}

// without returns whole without the kinds of elsewhere.
func (o *ownKinds) without(whole *api.Snapshot, elsewhere *discoverydocs.Registrations) *api.Snapshot {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.whole != whole || o.elsewhere != elsewhere {
		own := whole.Without(elsewhere.External)
		if o.own == nil || o.whole != whole || !slices.Equal(own.Resources, o.own.Resources) {
			o.own = own
		}
		o.whole, o.elsewhere = whole, elsewhere
	}
	return o.own
}

// OpenAPIV3Index answers a GET of /openapi/v3: the paths of the documents, one for each group and version.
func (h *Handlers) OpenAPIV3Index(w http.ResponseWriter, r *http.Request) error {
	index, err := h.o.Aggregation.OpenAPIV3Index(r.Context(), r.Header, h.docs.V3Index(h.documented(r)))
	if err != nil {
		return err
	}
	return h.writeDocument(w, r, index)
}

// OpenAPIV3 answers a GET of the document of one group and version.
func (h *Handlers) OpenAPIV3(w http.ResponseWriter, r *http.Request) error {
	name := strings.TrimPrefix(r.URL.Path, "/openapi/v3/")
	source, doc := h.o.Aggregation.OpenAPIV3(r.Context(), name)
	if source != nil && doc == nil {
		h.o.Pass(w, r, source)
		return nil
	}
	if doc == nil {
		doc = h.docs.V3(h.documented(r), name)
	}
	if doc == nil {
		return status.NotServed()
	}
	if hash := r.URL.Query().Get("hash"); hash != "" {
		if !strings.EqualFold(hash, doc.Hash) {
			// The hash of an older document: the content has changed.
			http.Redirect(w, r, r.URL.Path+"?hash="+doc.Hash, http.StatusMovedPermanently)
			return nil
		}
		// The hash names the content: a client may keep it forever.
		w.Header().Set("Expires", "Fri, 01 Jan 2100 00:00:00 GMT")
	}
	return h.writeDocument(w, r, doc)
}

// OpenAPIV2 answers a GET of /openapi/v2: one document for all kinds.
func (h *Handlers) OpenAPIV2(w http.ResponseWriter, r *http.Request) error {
	return h.writeDocument(w, r,
		h.o.Aggregation.OpenAPIV2(r.Context(), r.Header, h.docs.V2(h.documented(r))))
}

// writeDocument answers with an OpenAPI document in JSON or protobuf, or with 304.
func (h *Handlers) writeDocument(w http.ResponseWriter, r *http.Request, doc *openapi.Document) error {
	if notModified(w, r, doc.Hash) {
		return nil
	}
	media, body, err := encoding.MediaJSON, []byte(nil), error(nil)
	switch accept := r.Header.Get("Accept"); {
	case strings.Contains(accept, "openapi.spec.v2") && strings.Contains(accept, "protobuf"):
		media = openapi.MediaTypeV2Protobuf
		body, err = doc.Protobuf()
	case strings.Contains(accept, "openapi.spec.v3") && strings.Contains(accept, "protobuf"):
		media = openapi.MediaTypeV3Protobuf
		body, err = doc.Protobuf()
	default:
		body, err = doc.JSON()
	}
	if err != nil {
		return err
	}
	return h.o.WriteBody(w, r, encoding.Output{Media: media, Gzip: encoding.AcceptsGzip(r.Header), Raw: true},
		http.StatusOK, body)
}

// notModified answers 304 to a client that has the content already.
func notModified(w http.ResponseWriter, r *http.Request, hash string) bool {
	etag := `"` + strings.ToUpper(hash) + `"`
	w.Header().Set("ETag", etag)
	w.Header().Set("Vary", "Accept")
	tags := strings.Split(r.Header.Get("If-None-Match"), ",")
	if !slices.ContainsFunc(tags, func(tag string) bool {
		tag = strings.TrimPrefix(strings.TrimSpace(tag), "W/") // RFC 9110, 13.1.2: compared weakly
		return tag == etag || tag == "*"
	}) {
		return false
	}
	w.WriteHeader(http.StatusNotModified)
	return true
}
