package aggregation

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/openapiconv"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/coxswain-dev/coxswain/api/openapi"
)

// This server's OpenAPI includes that of other servers. Version 3 has one document per group and version: the index
// lists the documents of other servers, and requests for them are proxied. Version 2 is a single document, into
// which the documents of other servers are merged (fragment.go). The version 2 document of a server without version
// 3 is converted.

// These limit the OpenAPI of a server, in bytes: the index of version 3 and the document of version 2.
const (
	maxIndex = 1 << 20
	maxSpec  = 8 << 20
	// maxHash limits the length of a document's hash.
	maxHash = 256
)

const acceptJSON = "application/json"

// spec3 describes the entry of another server's document in its index of version 3.
type spec3 struct {
	// served is set if there is a document. hash identifies its content.
	served bool
	hash   string
	// converted is the document itself if the server only has version 2.
	converted *openapi.Document
}

// fetchSpec3 fetches the server's index.
func (a *Aggregation) fetchSpec3(ctx context.Context, l *link, etag string) (*spec3, string, error) {
	const path = "/openapi/v3"
	r, err := a.ask(ctx, l, path, maxIndex, acceptJSON, etag)
	switch {
	case err != nil:
		return nil, "", err
	case r.code == http.StatusNotFound:
		s, err := a.convertSpec(ctx, l)
		return s, "", err
	case r.code != http.StatusOK:
		return nil, "", r.failure(path)
	}
	var index struct {
		Paths map[string]struct {
			ServerRelativeURL string `json:"serverRelativeURL"`
		} `json:"paths"`
	}
	if err := json.Unmarshal(r.body, &index); err != nil {
		return nil, "", fmt.Errorf("%s: %w", path, err)
	}
	entry, served := index.Paths[pathOf(l.gv)]
	s := &spec3{served: served}
	if location, err := url.Parse(entry.ServerRelativeURL); err == nil && len(location.Query().Get("hash")) <= maxHash {
		s.hash = location.Query().Get("hash")
	}
	return s, r.header.Get("Etag"), nil
}

// convertSpec converts the version 2 document of a server to version 3.
func (a *Aggregation) convertSpec(ctx context.Context, l *link) (*spec3, error) {
	f, _, err := a.fetchFragment(ctx, l, "")
	if err != nil || f == nil {
		return &spec3{}, err
	}
	old, err := f.document()
	if err != nil {
		return nil, err
	}
	var swagger spec.Swagger
	if err := swagger.UnmarshalJSON(old); err != nil {
		return nil, fmt.Errorf("converting OpenAPI: %w", err)
	}
	body, err := json.Marshal(openapiconv.ConvertV2ToV3(&swagger))
	if err != nil {
		return nil, fmt.Errorf("converting OpenAPI: %w", err)
	}
	return &spec3{served: true, hash: f.hash,
		converted: openapi.NewV3(f.hash, func() ([]byte, error) { return body, nil })}, nil
}

// pathOf returns the name of a group and version in the index.
func pathOf(gv schema.GroupVersion) string { return "apis/" + gv.Group + "/" + gv.Version }

// OpenAPIV3Index adds the documents of other servers to this server's index.
func (a *Aggregation) OpenAPIV3Index(ctx context.Context, h http.Header, own *openapi.Document) (*openapi.Document,
	error) {
	current := a.now()
	if current == nil || len(current.services) == 0 {
		return own, nil
	}
	text, err := own.JSON()
	if err != nil {
		return nil, err
	}
	var index struct {
		Paths map[string]any `json:"paths"`
	}
	if err := json.Unmarshal(text, &index); err != nil {
		return nil, fmt.Errorf("this server's index: %w", err)
	}
	for gv, k := range askAll(ctx, a, h, current, func(l *link) *document[*spec3] { return &l.spec3 }) {
		s := k.value
		if s == nil || !s.served {
			continue
		}
		location := url.URL{Path: "/openapi/v3/" + pathOf(gv)}
		if s.hash != "" {
			location.RawQuery = url.Values{"hash": {s.hash}}.Encode()
		}
		index.Paths[pathOf(gv)] = map[string]any{"serverRelativeURL": location.String()}
	}
	return openapi.NewIndex(index.Paths), nil
}

// OpenAPIV3 returns the other server that owns the document with the given name in the index, or nil if there is
// none. It also returns the document if it had to be converted.
func (a *Aggregation) OpenAPIV3(ctx context.Context, name string) (*Service, *openapi.Document) {
	s := a.At("/" + name)
	if s == nil || name != pathOf(s.GroupVersion) {
		return nil, nil
	}
	if !s.Available {
		return s, nil
	}
	if wait := s.link.spec3.begin(a); wait != nil {
		ctx, cancel := context.WithTimeout(ctx, waitFor)
		defer cancel()
		select {
		case <-wait:
		case <-ctx.Done():
		}
	}
	if k := s.link.spec3.last(); k.value != nil {
		return s, k.value.converted
	}
	return s, nil
}

// OpenAPIV2 merges the documents of other servers into this server's own.
func (a *Aggregation) OpenAPIV2(ctx context.Context, h http.Header, own *openapi.Document) *openapi.Document {
	current := a.now()
	if current == nil || len(current.services) == 0 {
		return own
	}
	found := askAll(ctx, a, h, current, func(l *link) *document[*fragment] { return &l.spec2 })
	gvs := make([]schema.GroupVersion, 0, len(found))
	for gv, f := range found {
		if f.value != nil {
			gvs = append(gvs, gv)
		}
	}
	if len(gvs) == 0 {
		return own
	}
	slices.SortFunc(gvs, func(x, y schema.GroupVersion) int { return strings.Compare(x.String(), y.String()) })
	sum := sha256.New()
	sum.Write([]byte(own.Hash))
	fragments := make([]*fragment, len(gvs))
	for i, gv := range gvs {
		fragments[i] = found[gv].value
		sum.Write([]byte("\x00" + fragments[i].hash))
	}
	return a.merged.of(hex.EncodeToString(sum.Sum(nil)), own, fragments)
}

// mergedDocument caches the last merged document of version 2.
type mergedDocument struct {
	mu   sync.Mutex
	last *openapi.Document
}

func (m *mergedDocument) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = nil
}

func (m *mergedDocument) of(hash string, own *openapi.Document, fragments []*fragment) *openapi.Document {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.last == nil || m.last.Hash != hash {
		m.last = openapi.NewV2(hash, func() ([]byte, error) {
			text, err := own.JSON()
			if err != nil {
				return nil, err
			}
			return merge(text, fragments)
		})
	}
	return m.last
}
