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
	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/apiserver/fieldmanager"
	"github.com/coxswain-dev/coxswain/apiserver/objecttest"
	"github.com/coxswain-dev/coxswain/apiserver/patch"
	"github.com/coxswain-dev/coxswain/storage"
)

// TestPatchNamed_EqualsAWholePatch patches random objects of every kind, with and without patch.Named, and compares
// the results.
func TestPatchNamed_EqualsAWholePatch(t *testing.T) {
	t.Parallel()
	short := 0
	for _, res := range api.NewRegistry(builtin.Kinds()...).Snapshot().Resources {
		if res.Conversion != nil || res.CreateOnly {
			continue
		}
		random := objecttest.New(res, 1)
		for range 8 {
			old := random.Next(nil)
			doc, err := json.Marshal(old)
			require.NoError(t, err)
			stored, err := storage.NewObject(storage.Key{Name: "x"}, 7, doc)
			require.NoError(t, err)
			old, err = encoding.Decode(t.Context(), res, stored)
			require.NoError(t, err)
			untouched := old.DeepCopyObject().(api.Object)
			body, err := json.Marshal(randomPatch(random, objecttest.DocumentOf(random.Next(old))))
			require.NoError(t, err)
			for name, apply := range map[string]patcher{
				"merge":     func(doc []byte) ([]byte, error) { return patch.Merge(doc, body) },
				"strategic": func(doc []byte) ([]byte, error) { return strategic(&request{res: res}, doc, body) },
			} {
				wr := &write{request: &request{Request: &http.Request{}, res: res}, stored: stored}
				p := &sentPatch{apply: apply}
				want, wantErr := patched(wr, old, p)
				p.named = patch.NamedBy(body)
				got, gotErr := patched(wr, old, p)
				require.Equal(t, fmt.Sprint(wantErr), fmt.Sprint(gotErr), "%s %s", name, body)
				require.Equal(t, want, got, "%s %s", name, body)
				require.Equal(t, untouched, old, "the old object is not modified")
				if _, ok := p.named.Apply(old, stored.JSON, apply); ok {
					short++
				}
			}
		}
	}
	require.Greater(t, short, 500, "most patches use patch.Named")
}

// randomPatch returns a random part of a document, with some values replaced by null.
func randomPatch(o *objecttest.Objects, doc map[string]any) map[string]any {
	part := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(doc)) {
		switch v := doc[name].(type) {
		case map[string]any:
			if o.IntN(2) == 0 {
				part[name] = randomPatch(o, v)
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

func BenchmarkPatch(b *testing.B) {
	res, pod := objecttest.Pod(builtin.Kinds())
	pod.ManagedFields = fieldmanager.Create(res, pod, fieldmanager.Writer{Manager: "bench", APIVersion: "v1"})
	doc, err := encoding.Encode(res, pod)
	require.NoError(b, err)
	stored, err := storage.NewObject(storage.Key{Name: pod.Name}, 7, doc)
	require.NoError(b, err)
	old, err := encoding.Decode(b.Context(), res, stored)
	require.NoError(b, err)
	body := []byte(`{"metadata":{"labels":{"app":"shop"}}}`)
	for name, apply := range map[string]patcher{
		"merge":     func(doc []byte) ([]byte, error) { return patch.Merge(doc, body) },
		"strategic": func(doc []byte) ([]byte, error) { return strategic(&request{res: res}, doc, body) },
	} {
		for way, names := range map[string]patch.Named{"named": patch.NamedBy(body), "whole": {}} {
			wr := &write{request: &request{Request: &http.Request{}, res: res}, stored: stored}
			p := &sentPatch{apply: apply, named: names}
			b.Run(name+"/"+way, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					_, err := patched(wr, old, p)
					require.NoError(b, err)
				}
			})
		}
	}
}
