package apiserver_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	cbor "k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/builtin"
)

// fuzzedKind has the paths of a kind's collection and of an existing object.
type fuzzedKind struct{ collection, object string }

// FuzzEveryKind sends documents that are similar to objects of each kind, as creates and as patches of an existing
// object: decoding, defaults, validation and ownership answer within the API's contract.
func FuzzEveryKind(f *testing.F) {
	s := start(f)
	var kinds []fuzzedKind
	for _, r := range builtin.Kinds() {
		if r.Kind == "Binding" || r.Virtual {
			continue // it is not stored
		}
		k := fuzzedKind{collection: collectionPath(r)}
		obj := r.New()
		name := fillSample(f, obj, r.Kind)
		obj.GetObjectKind().SetGroupVersionKind(r.GVK())
		doc := document(f, obj)
		if !r.CreateOnly {
			obj.SetName(name)
			doc = document(f, obj)
			k.object = k.collection + "/" + name
			if s.get(k.object).code == http.StatusNotFound {
				s.create(k.collection, doc)
			}
			delete(doc["metadata"].(m), "name")
			doc["metadata"].(m)["generateName"] = "x-"
		}
		if text := actions[r.Plural]; text != "" {
			require.NoError(f, json.Unmarshal([]byte(text), &doc))
		}
		delete(doc, "status")
		body, err := json.Marshal(doc)
		require.NoError(f, err)
		packed, err := cbor.Marshal(doc)
		require.NoError(f, err)
		f.Add(uint8(len(kinds)), uint8(0), body)
		f.Add(uint8(len(kinds)), uint8(1), packed)
		kinds = append(kinds, k)
	}
	formats := []string{"application/json", cborType, "application/yaml", protobuf}
	f.Fuzz(func(t *testing.T, kind, format uint8, body []byte) {
		s, k := s.within(t), kinds[int(kind)%len(kinds)]
		s.do(http.MethodPost, k.collection+"?dryRun=All", body, "Content-Type",
			formats[int(format)%len(formats)]).civil()
		if k.object != "" && json.Valid(body) {
			s.patch(k.object+"?dryRun=All", mergePatch, body).civil()
		}
	})
}

// collectionPath returns the path of a kind's collection, in the namespace default.
func collectionPath(r *api.Resource) string {
	path := "/apis/" + r.GroupVersion().String()
	if r.Group == "" {
		path = "/api/" + r.Version
	}
	if r.Namespaced {
		path += "/namespaces/default"
	}
	return path + "/" + r.Plural
}
