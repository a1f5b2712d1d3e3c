package apiserver

import (
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
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
)

// Discovery lists the kinds that are served: as one aggregated document (KEP-3352) for clients
// that ask for it, group by group for the others.

// kinds are those that discovery and documentation show: all that memory has a definition of. A client that has seen a
// definition become established finds its kind.
func (s *Server) kinds(r *http.Request) *api.Snapshot {
	if s.definitions != nil {
		_ = s.definitions.Settle(r.Context()) // an error is the end of the request
	}
	return s.Registry.Snapshot()
}

func (s *Server) serveLegacyVersions(w http.ResponseWriter, r *http.Request) error {
	snapshot := s.kinds(r)
	if media := encoding.NegotiateDiscovery(r.Header.Get("Accept")); media != "" {
		return s.writeAggregated(w, r, media, discoverydocs.AggregatedCore(snapshot))
	}
	return s.writeDiscovery(w, r, discoverydocs.Versions(snapshot, r.Host))
}

func (s *Server) serveGroups(w http.ResponseWriter, r *http.Request) error {
	snapshot := s.kinds(r)
	if media := encoding.NegotiateDiscovery(r.Header.Get("Accept")); media != "" {
		external := s.aggregation.Discovery(r.Context(), r.Header)
		return s.writeAggregated(w, r, media,
			discoverydocs.AggregatedGroups(snapshot, s.aggregation.Registrations(), external))
	}
	return s.writeDiscovery(w, r, discoverydocs.Groups(snapshot, s.aggregation.Registrations()))
}

func (s *Server) serveGroup(w http.ResponseWriter, r *http.Request) error {
	group := discoverydocs.Group(s.kinds(r), s.aggregation.Registrations(), chi.URLParam(r, "group"))
	if group == nil {
		return notFoundPath()
	}
	return s.writeDiscovery(w, r, group)
}

func (s *Server) serveResources(w http.ResponseWriter, r *http.Request) error {
	gv := schema.GroupVersion{Group: chi.URLParam(r, "group"), Version: chi.URLParam(r, "version")}
	list := discoverydocs.Resources(s.kinds(r), gv)
	if list == nil || gv.Group == "" && strings.HasPrefix(r.URL.Path, "/apis/") {
		return notFoundPath()
	}
	return s.writeDiscovery(w, r, list)
}

// writeDiscovery answers with a document in the media type that the client prefers.
func (s *Server) writeDiscovery(w http.ResponseWriter, r *http.Request, doc runtime.Object) error {
	media, err := encoding.NegotiateDocument(r.Header.Get("Accept"))
	if err != nil {
		return err
	}
	out := encoding.Output{Media: media, Gzip: encoding.AcceptsGzip(r.Header),
		Pretty: wantsPretty(r)}
	body, err := out.Value("v1", doc.GetObjectKind().GroupVersionKind().Kind, doc)
	if err != nil {
		return fmt.Errorf("encoding discovery: %w", err)
	}
	return s.writeBody(w, r, out, http.StatusOK, body)
}

func (s *Server) writeAggregated(w http.ResponseWriter, r *http.Request, media string, list any) error {
	body, err := json.Marshal(list)
	if err != nil {
		return fmt.Errorf("encoding discovery: %w", err)
	}
	hash, err := discoverydocs.Hash(list)
	if err != nil {
		return err
	}
	if notModified(w, r, hash) {
		return nil
	}
	return s.writeBody(w, r, encoding.Output{Media: media, Gzip: encoding.AcceptsGzip(r.Header),
		Pretty: wantsPretty(r)},
		http.StatusOK, body)
}

// documented are the kinds that this server documents itself: those that it serves, and no other server.
func (s *Server) documented(r *http.Request) *api.Snapshot {
	snapshot, elsewhere := s.kinds(r), s.aggregation.Registrations()
	if elsewhere == nil {
		return snapshot
	}
	return s.ownKinds.of(snapshot, elsewhere)
}

// ownKinds is the last snapshot without what other servers serve. Documents are kept as long as it is the same one.
type ownKinds struct {
	mu        sync.Mutex
	whole     *api.Snapshot
	elsewhere *discoverydocs.Registrations
	left      *api.Snapshot
}

func (o *ownKinds) of(whole *api.Snapshot, elsewhere *discoverydocs.Registrations) *api.Snapshot {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.whole != whole || o.elsewhere != elsewhere {
		left := whole.Without(elsewhere.External)
		if o.left == nil || o.whole != whole || !slices.Equal(left.Resources, o.left.Resources) {
			o.left = left
		}
		o.whole, o.elsewhere = whole, elsewhere
	}
	return o.left
}

func (s *Server) serveOpenAPIV3Index(w http.ResponseWriter, r *http.Request) error {
	index, err := s.aggregation.OpenAPIV3Index(r.Context(), r.Header, s.openapi.V3Index(s.documented(r)))
	if err != nil {
		return err
	}
	return s.writeDocument(w, r, index)
}

func (s *Server) serveOpenAPIV3(w http.ResponseWriter, r *http.Request) error {
	name := strings.TrimPrefix(r.URL.Path, "/openapi/v3/")
	from, doc := s.aggregation.OpenAPIV3(r.Context(), name)
	if from != nil && doc == nil {
		s.passOnTo(w, &aggregation.Request{Request: r, User: authn.UserFrom(r.Context()),
			Annotate: exchangeOf(r.Context()).Audit().Annotate, Fail: func(err error) { s.failAggregated(w, r, err) },
			Switched: func() {}}, from)
		return nil
	}
	if doc == nil {
		doc = s.openapi.V3(s.documented(r), name)
	}
	if doc == nil {
		return notFoundPath()
	}
	if hash := r.URL.Query().Get("hash"); hash != "" {
		if !strings.EqualFold(hash, doc.Hash) {
			// The hash of an older document: the content has changed.
			http.Redirect(w, r, r.URL.Path+"?hash="+doc.Hash, http.StatusMovedPermanently)
			return nil
		}
		// The hash names the content: a client may keep it for ever.
		w.Header().Set("Expires", "Fri, 01 Jan 2100 00:00:00 GMT")
	}
	return s.writeDocument(w, r, doc)
}

func (s *Server) serveOpenAPIV2(w http.ResponseWriter, r *http.Request) error {
	return s.writeDocument(w, r,
		s.aggregation.OpenAPIV2(r.Context(), r.Header, s.openapi.V2(s.documented(r))))
}

// writeDocument answers with an OpenAPI document in JSON or protobuf, or with 304.
func (s *Server) writeDocument(w http.ResponseWriter, r *http.Request, doc *openapi.Document) error {
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
	return s.writeBody(w, r, encoding.Output{Media: media, Gzip: encoding.AcceptsGzip(r.Header), Raw: true},
		http.StatusOK, body)
}

// notModified answers 304 to a client that has the content already.
func notModified(w http.ResponseWriter, r *http.Request, hash string) bool {
	etag := `"` + strings.ToUpper(hash) + `"`
	w.Header().Set("ETag", etag)
	w.Header().Set("Vary", "Accept")
	known := strings.Split(r.Header.Get("If-None-Match"), ",")
	if !slices.ContainsFunc(known, func(tag string) bool {
		tag = strings.TrimPrefix(strings.TrimSpace(tag), "W/") // RFC 9110, 13.1.2: compared weakly
		return tag == etag || tag == "*"
	}) {
		return false
	}
	w.WriteHeader(http.StatusNotModified)
	return true
}
