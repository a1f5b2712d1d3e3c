package aggregation

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"strings"

	openapiv2 "github.com/google/gnostic-models/openapiv2"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// A fragment is the part of a server's OpenAPI v2 document that describes one group and version: its paths and
// everything they refer to. The document is validated once. After that the fragment stays text, in which only the
// references are interpreted.

// maxMerged limits the total size that fragments add to this server's document, in bytes.
const maxMerged = 32 << 20

type fragment struct {
	hash                           string
	size                           int
	paths, definitions, parameters map[string]json.RawMessage
}

// swagger holds the parts of an OpenAPI v2 document that are merged.
type swagger struct {
	Paths       map[string]json.RawMessage `json:"paths"`
	Definitions map[string]json.RawMessage `json:"definitions"`
	Parameters  map[string]json.RawMessage `json:"parameters"`
}

// fetchFragment fetches the OpenAPI v2 document of a server. It returns nil if the server has none.
func (a *Aggregation) fetchFragment(ctx context.Context, l *link, etag string) (*fragment, string, error) {
	const path = "/openapi/v2"
	r, err := a.ask(ctx, l, path, maxSpec, acceptJSON, etag)
	switch {
	case err != nil:
		return nil, "", err
	case r.code == http.StatusNotFound:
		return nil, "", nil
	case r.code != http.StatusOK:
		return nil, "", r.failure(path)
	}
	var doc swagger
	if err := json.Unmarshal(r.body, &doc); err != nil {
		return nil, "", fmt.Errorf("%s: %w", path, err)
	}
	f, err := newFragment(&doc, l.gv)
	return f, r.header.Get("Etag"), err
}

// These prefixes begin the references in paths and definitions.
const (
	toDefinition = `"#/definitions/`
	toParameter  = `"#/parameters/`
)

// newFragment extracts the part of a document that describes gv. It fails if clients could not parse the part,
// because that would make the whole merged document unreadable for them.
func newFragment(doc *swagger, gv schema.GroupVersion) (*fragment, error) {
	f := &fragment{paths: map[string]json.RawMessage{}, definitions: map[string]json.RawMessage{},
		parameters: map[string]json.RawMessage{}}
	prefix := "/" + pathOf(gv) + "/"
	var open []json.RawMessage
	for path, item := range doc.Paths {
		if strings.HasPrefix(path, prefix) {
			f.paths[path] = item
			open = append(open, item)
		}
	}
	for len(open) > 0 {
		text := open[len(open)-1]
		open = open[:len(open)-1]
		open = append(open, take(text, toDefinition, doc.Definitions, f.definitions)...)
		open = append(open, take(text, toParameter, doc.Parameters, f.parameters)...)
	}
	text, err := f.document()
	if err != nil {
		return nil, err
	}
	if err := new(spec.Swagger).UnmarshalJSON(text); err != nil {
		return nil, fmt.Errorf("unsound OpenAPI: %w", err)
	}
	if _, err := openapiv2.ParseDocument(text); err != nil {
		return nil, fmt.Errorf("unsound OpenAPI: %w", err)
	}
	sum := sha256.Sum256(text)
	f.hash, f.size = hex.EncodeToString(sum[:]), len(text)
	return f, nil
}

// take copies the definitions that a text refers to from one map to the other, and returns the added ones.
func take(text []byte, reference string, from, to map[string]json.RawMessage) (added []json.RawMessage) {
	for {
		_, rest, found := bytes.Cut(text, []byte(reference))
		if !found {
			return added
		}
		name, after, _ := bytes.Cut(rest, []byte(`"`))
		text = after
		if value, there := from[string(name)]; there && to[string(name)] == nil {
			to[string(name)] = value
			added = append(added, value)
		}
	}
}

// document returns the fragment as an OpenAPI document of its own.
func (f *fragment) document() ([]byte, error) {
	return json.Marshal(map[string]any{"swagger": "2.0", "info": map[string]any{"title": "Kubernetes", "version": "v1"},
		"paths": f.paths, "definitions": f.definitions, "parameters": f.parameters})
}

// merge adds the fragments to the document own. It skips paths that exist already, and renames definitions and
// parameters if a different one has the name already. It drops the remaining fragments once maxMerged is exceeded.
func merge(own []byte, fragments []*fragment) ([]byte, error) {
	var all map[string]json.RawMessage
	var doc swagger
	if err := json.Unmarshal(own, &all); err != nil {
		return nil, fmt.Errorf("this server's OpenAPI: %w", err)
	}
	if err := json.Unmarshal(own, &doc); err != nil {
		return nil, fmt.Errorf("this server's OpenAPI: %w", err)
	}
	left := maxMerged
	for _, f := range fragments {
		if left -= f.size; left < 0 {
			break
		}
		doc.add(f)
	}
	for name, part := range map[string]any{"paths": doc.Paths, "definitions": doc.Definitions,
		"parameters": doc.Parameters} {
		text, err := json.Marshal(part)
		if err != nil {
			return nil, err
		}
		all[name] = text
	}
	return json.Marshal(all)
}

func (s *swagger) add(f *fragment) {
	definitions := renames(s.Definitions, f.definitions)
	parameters := renames(s.Parameters, f.parameters)
	var pairs []string
	for old, now := range definitions {
		pairs = append(pairs, toDefinition+old+`"`, toDefinition+now+`"`)
	}
	for old, now := range parameters {
		pairs = append(pairs, toParameter+old+`"`, toParameter+now+`"`)
	}
	replacer := strings.NewReplacer(pairs...)
	put := func(to *map[string]json.RawMessage, name string, value json.RawMessage) {
		if *to == nil {
			*to = map[string]json.RawMessage{}
		}
		if (*to)[name] == nil {
			(*to)[name] = json.RawMessage(replacer.Replace(string(value)))
		}
	}
	for path, item := range f.paths {
		put(&s.Paths, path, item)
	}
	for name, value := range f.definitions {
		if now := definitions[name]; now != "" {
			name = now
		}
		put(&s.Definitions, name, value)
	}
	for name, value := range f.parameters {
		if now := parameters[name]; now != "" {
			name = now
		}
		put(&s.Parameters, name, value)
	}
}

// renames returns new names for the entries of more that share a name with a different entry of have.
func renames(have, more map[string]json.RawMessage) map[string]string {
	renamed := map[string]string{}
	for name, value := range more {
		if have[name] == nil || alike(have[name], value) {
			continue
		}
		for i := 2; ; i++ {
			renaming := fmt.Sprintf("%s_v%d", name, i)
			if more[renaming] == nil && (have[renaming] == nil || alike(have[renaming], value)) {
				renamed[name] = renaming
				break
			}
		}
	}
	return renamed
}

// alike reports whether two definitions are equal except for the kinds they are labelled with.
func alike(a, b json.RawMessage) bool {
	if bytes.Equal(a, b) {
		return true
	}
	var x, y any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return false
	}
	for _, v := range []any{x, y} {
		if definition, ok := v.(map[string]any); ok {
			delete(definition, "x-kubernetes-group-version-kind")
		}
	}
	return reflect.DeepEqual(x, y)
}
