package customresource_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	kjson "sigs.k8s.io/json"

	"github.com/coxswain-dev/coxswain/api/customresource"
)

// FuzzRead: a definition that can be parsed registers its kinds, with any content: another release may have stored it.
func FuzzRead(f *testing.F) {
	for _, text := range []string{widgets, "{}", "null", `{"spec":null}`, `{"spec":{"versions":[null,{"storage":true}]}}`,
		`{"spec":{"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":null}}]}}`,
		`{"spec":{"names":{"kind":"A"},"versions":[{"name":"v1","served":true,"storage":true,"additionalPrinterColumns":[{"jsonPath":"["}]}]}}`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, err := customresource.Read([]byte(text))
		if err != nil {
			return
		}
		kinds, _ := d.Kinds(nil)
		for _, r := range kinds {
			require.NotNil(t, r.New())
			_, _ = r.New().(*customresource.Object).DecodeStrict([]byte(`{"spec":{"size":1}}`))
		}
		require.True(t, d.SameKind(d))
		require.Equal(t, d.Hash(), d.Hash())
	})
}

// anything defines a kind with objects that may have any fields.
const anything = `{"metadata":{"name":"things.example.com","uid":"u1"},
"spec":{"group":"example.com","scope":"Namespaced",
 "names":{"plural":"things","singular":"thing","kind":"Thing","listKind":"ThingList"},
 "versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":
   {"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]},
"status":{"acceptedNames":{"plural":"things","singular":"thing","kind":"Thing","listKind":"ThingList"},
 "conditions":[{"type":"Established","status":"True"},{"type":"NamesAccepted","status":"True"}]}}`

// FuzzDecodeStrict: a decoded document has the same fields as with Kubernetes' decoder, also if quick decoded it.
func FuzzDecodeStrict(f *testing.F) {
	for _, text := range []string{
		`{"apiVersion":"example.com/v1","kind":"Thing","metadata":{"name":"a","labels":{"a":"b"}},"spec":{"n":1}}`,
		"", "null", "[]", `{"a":1,"a":2}`, `{"A":1,"a":-0,"b":1e3,"c":9223372036854775808,"d":0.1}`,
		`{"a":"\ud800","b":"\u0000"}`, `{"metadata":{"name":1}}`, `{"metadata":{"Name":"a"}}`, `{"kind":1}`, `{} x`,
		`{"metadata":{"labels":null,"creationTimestamp":null,"unknown":1}}`, `{"spec":{"a":null,"b":[null]}}`,
		`{"metadata":{"creationTimestamp":"yesterday"}}`, `{"a":[[[[[[]]]]]]}`, `{"a":tru}`, "{\"a\":\"\xff\"}",
	} {
		f.Add(text)
	}
	d, err := customresource.Read([]byte(anything))
	require.NoError(f, err)
	kinds, _ := d.Kinds(nil)
	require.Len(f, kinds, 1)
	f.Fuzz(func(t *testing.T, text string) {
		o := kinds[0].New().(*customresource.Object)
		strict, err := o.DecodeStrict([]byte(text))
		var want map[string]any
		repeated, bad := kjson.UnmarshalStrict([]byte(text), &want)
		if bad != nil {
			require.Error(t, err)
			return
		}
		if err != nil {
			return // an error in its apiVersion, kind or metadata
		}
		require.GreaterOrEqual(t, len(strict), len(repeated))
		for _, name := range []string{"apiVersion", "kind", "metadata"} {
			delete(want, name)
		}
		if want == nil {
			want = map[string]any{}
		}
		require.Equal(t, want, o.Fields)
	})
}
