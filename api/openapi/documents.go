package openapi

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"reflect"
	"slices"
	"sync"

	openapiv2 "github.com/google/gnostic-models/openapiv2"
	openapiv3 "github.com/google/gnostic-models/openapiv3"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/api"
)

// The media types of the documents' protobuf forms.
const (
	MediaTypeV2Protobuf = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
	MediaTypeV3Protobuf = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf"
)

// formatVersion is part of every hash. Increment it when the same registrations and types produce a different document
// than before: clients cache documents by their hash without limit.
const formatVersion = "2"

// Documents holds the documents of the registry's current set. Each is built once, on the first request. Documents of
// earlier sets are dropped, except for groups that did not change. It is safe for concurrent use.
type Documents struct {
	version string

	mu      sync.Mutex
	current *set
}

// NewDocuments returns a Documents. version is the server's version with build metadata, as /version reports it.
func NewDocuments(version string) *Documents { return &Documents{version: version} }

// Document is a document in its serialized forms.
type Document struct {
	// Hash identifies the content, in hexadecimal: documents with equal hashes are equal. ETag headers and the hash
	// parameter of URLs contain it.
	Hash string

	json     func() ([]byte, error)
	protobuf func() ([]byte, error)
}

// JSON returns the document as JSON. The first call builds it, which may take tens of milliseconds. The
// bytes are shared and must not be changed.
func (d *Document) JSON() ([]byte, error) { return d.json() }

// Protobuf returns the document in gnostic's protobuf form, like JSON.
func (d *Document) Protobuf() ([]byte, error) { return d.protobuf() }

// set has the documents of one snapshot.
type set struct {
	snapshot *api.Snapshot
	index    *Document
	v2       *Document
	v3       map[string]*Document
}

// V3Index returns the document at /openapi/v3, which refers to all others. It has no protobuf form. It does not need
// the other documents to be built.
func (d *Documents) V3Index(s *api.Snapshot) *Document { return d.setOf(s).index }

// V3 returns the document for one of V3Paths, or nil.
func (d *Documents) V3(s *api.Snapshot, path string) *Document { return d.setOf(s).v3[path] }

// V2 returns the document at /openapi/v2.
func (d *Documents) V2(s *api.Snapshot) *Document { return d.setOf(s).v2 }

// setOf returns the set of a snapshot. A snapshot older than the current one, from a request that overlapped with a
// change, gets a set that is not cached.
func (d *Documents) setOf(s *api.Snapshot) *set {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.current != nil && d.current.snapshot == s {
		return d.current
	}
	next := d.newSet(s, d.current)
	if d.current == nil || d.current.snapshot.Generation <= s.Generation {
		d.current = next
	}
	return next
}

// Forget drops the documents of kinds that a snapshot no longer has. It does not build any document.
func (d *Documents) Forget(s *api.Snapshot) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.current == nil || d.current.snapshot.Generation >= s.Generation {
		return
	}
	present := map[schema.GroupVersion][]*api.Resource{}
	for _, gv := range groupVersions(s) {
		present[gv.GroupVersion] = gv.resources
	}
	// No request has this snapshot, so the next request builds its own set from the remaining documents.
	remaining := &set{snapshot: &api.Snapshot{Generation: s.Generation}, v3: map[string]*Document{}}
	for _, gv := range groupVersions(d.current.snapshot) {
		if slices.Equal(gv.resources, present[gv.GroupVersion]) {
			path := groupVersionPath(gv.GroupVersion)
			remaining.v3[path] = d.current.v3[path]
		}
	}
	d.current = remaining
}

// newSet creates the documents of a snapshot without building any, and takes unchanged ones from the previous set.
func (d *Documents) newSet(s *api.Snapshot, before *set) *set {
	next := &set{snapshot: s, v3: map[string]*Document{}}
	if before == nil {
		before = &set{}
	}
	all := d.newHash("v2")
	paths := map[string]any{}
	for _, gv := range groupVersions(s) {
		h := d.newHash("v3")
		for _, r := range gv.resources {
			identify(io.MultiWriter(h, all), r)
		}
		path, sum := groupVersionPath(gv.GroupVersion), sumOf(h)
		next.v3[path] = before.v3[path]
		if old := before.v3[path]; old == nil || old.Hash != sum {
			next.v3[path] = d.newV3(&gv, sum)
		}
		paths[path] = map[string]any{"serverRelativeURL": "/openapi/v3/" + path + "?hash=" + sum}
	}
	next.v2 = before.v2
	if sum := sumOf(all); before.v2 == nil || before.v2.Hash != sum {
		next.v2 = d.newV2(s, sum)
	}
	next.index = NewIndex(paths)
	return next
}

func (d *Documents) newHash(form string) hash.Hash {
	h := sha256.New()
	fmt.Fprintf(h, "%s\x00%s\x00%s\x00", formatVersion, d.version, form)
	return h
}

func sumOf(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)) }

// identify writes all parts of a registration that a document depends on. The structure of a Go type follows from its
// name and the server's version. The structure of a custom kind is in its definition, which enters as a hash and is
// not decoded.
func identify(w io.Writer, r *api.Resource) {
	fmt.Fprintf(w, "%s %s %t %v %q\x00", r.GVK(), r.Plural, r.Namespaced, reflect.TypeOf(r.New()), r.UnsupportedVerbs)
	if v := custom(r); v != nil {
		fmt.Fprintf(w, "%s %x\x00", r.ListGVK().Kind, v.Definition().Hash())
	}
	for _, sub := range r.AllSubresources() {
		fmt.Fprintf(w, "%s %s/%s %s %q\x00", sub.Name, sub.Group, sub.Version, sub.Kind, sub.Verbs)
	}
}

// NewIndex returns an index of version 3, which maps the names of the documents to their URLs.
func NewIndex(paths map[string]any) *Document {
	data, err := json.Marshal(map[string]any{"paths": paths})
	sum := sha256.Sum256(data)
	return &Document{
		Hash:     hex.EncodeToString(sum[:]),
		json:     func() ([]byte, error) { return data, err },
		protobuf: func() ([]byte, error) { return nil, fmt.Errorf("openapi: the index has no protobuf form") },
	}
}

// newV3 keeps only the document's resources of the snapshot, since the document may outlive it.
func (d *Documents) newV3(gv *groupVersion, sum string) *Document {
	return NewV3(sum, func() ([]byte, error) { return gv.v3(d.version) })
}

func (d *Documents) newV2(s *api.Snapshot, sum string) *Document {
	return NewV2(sum, func() ([]byte, error) { return v2(s, d.version) })
}

// NewV2 returns a document of version 2. build is called when the content is first needed; hash is the content's hash.
func NewV2(hash string, build func() ([]byte, error)) *Document {
	return newDocument(hash, build, func(data []byte) (proto.Message, error) { return openapiv2.ParseDocument(data) })
}

// NewV3 is NewV2 for a document of version 3.
func NewV3(hash string, build func() ([]byte, error)) *Document {
	return newDocument(hash, build, func(data []byte) (proto.Message, error) { return openapiv3.ParseDocument(data) })
}

func newDocument(sum string, build func() ([]byte, error), parse func([]byte) (proto.Message, error)) *Document {
	doc := &Document{Hash: sum, json: sync.OnceValues(build)}
	doc.protobuf = sync.OnceValues(func() ([]byte, error) {
		data, err := doc.json()
		if err != nil {
			return nil, err
		}
		message, err := parse(data)
		if err != nil {
			return nil, fmt.Errorf("openapi: protobuf form: %w", err)
		}
		return proto.MarshalOptions{Deterministic: true}.Marshal(message)
	})
	return doc
}
