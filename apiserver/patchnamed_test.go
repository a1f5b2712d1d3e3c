package apiserver

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/storage"
)

// TestPatchNamed_IsTheLongWay patches random objects of every kind both ways.
func TestPatchNamed_IsTheLongWay(t *testing.T) {
	t.Parallel()
	short := 0
	for _, res := range api.NewRegistry(api.Builtin()...).Snapshot().Resources {
		if res.View != nil || res.Review {
			continue
		}
		random := newObjects(res, 1)
		for range 8 {
			old := random.next(nil)
			doc, err := json.Marshal(old)
			require.NoError(t, err)
			stored, err := storage.NewObject(storage.Key{Name: "x"}, 7, doc)
			require.NoError(t, err)
			old, err = decode(res, stored)
			require.NoError(t, err)
			untouched := clone(old)
			body, err := json.Marshal(random.patch(documentOf(random.next(old))))
			require.NoError(t, err)
			for name, apply := range map[string]patcher{
				"merge":     func(doc []byte) ([]byte, error) { return mergePatch(doc, body) },
				"strategic": func(doc []byte) ([]byte, error) { return strategic(&request{res: res}, doc, body) },
			} {
				r := &request{Request: &http.Request{}, res: res, stored: stored}
				want, wantErr := patched(r, old, apply)
				r.named = namedBy(body)
				got, gotErr := patched(r, old, apply)
				require.Equal(t, fmt.Sprint(wantErr), fmt.Sprint(gotErr), "%s %s", name, body)
				require.Equal(t, want, got, "%s %s", name, body)
				require.Equal(t, untouched, old, "the old object is left alone")
				if _, ok := patchNamed(old, stored.JSON, r.named, apply); ok {
					short++
				}
			}
		}
	}
	require.Greater(t, short, 500, "most patches go the short way")
}

// patch is a random part of a document, with a null here and there.
func (o *objects) patch(doc map[string]any) map[string]any {
	part := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(doc)) {
		switch v := doc[name].(type) {
		case map[string]any:
			if o.IntN(2) == 0 {
				part[name] = o.patch(v)
			}
		default:
			if o.IntN(2) == 0 && name != "kind" && name != "apiVersion" {
				part[name] = v
			}
		}
		if o.IntN(12) == 0 {
			part[name] = nil
		}
	}
	return part
}

func TestPatchNamed_DirectivesAreLeftToTheLongWay(t *testing.T) {
	t.Parallel()
	for patch, want := range map[string]named{
		`{"metadata":{"labels":{"a":"b"},"name":null}}`:                   {members: []string{"metadata"}, metadata: []string{"labels", "name"}},
		`{"metadata":{"finalizers":[],"$setElementOrder/finalizers":[]}}`: {members: []string{"metadata"}},
		`{"metadata":null}`:                                              {members: []string{"metadata"}},
		` { "spec" : { } , "status" : null } `:                           {members: []string{"spec", "status"}},
		`{"$patch":"replace","spec":{}}`:                                 {},
		`{"secrets":[{"name":"a"}],"$setElementOrder/secrets":["name"]}`: {},
		`{}`: {},
	} {
		require.Equal(t, want, namedBy([]byte(patch)), patch)
	}
}

func BenchmarkPatch(b *testing.B) {
	res, pod := benchmarkPod(b)
	pod.ManagedFields = ownNew(res, pod, benchmarkWriter())
	doc, err := encode(res, pod)
	require.NoError(b, err)
	stored, err := storage.NewObject(storage.Key{Name: pod.Name}, 7, doc)
	require.NoError(b, err)
	old, err := decode(res, stored)
	require.NoError(b, err)
	body := []byte(`{"metadata":{"labels":{"app":"shop"}}}`)
	for name, apply := range map[string]patcher{
		"merge":     func(doc []byte) ([]byte, error) { return mergePatch(doc, body) },
		"strategic": func(doc []byte) ([]byte, error) { return strategic(&request{res: res}, doc, body) },
	} {
		for way, names := range map[string]named{"named": namedBy(body), "whole": {}} {
			r := &request{Request: &http.Request{}, res: res, stored: stored, named: names}
			b.Run(name+"/"+way, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					_, err := patched(r, old, apply)
					require.NoError(b, err)
				}
			})
		}
	}
}
