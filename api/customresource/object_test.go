package customresource_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/customresource"
)

// widgets defines a kind with two versions. v1 is the storage version.
const widgets = `{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1",
"metadata":{"name":"widgets.example.com","uid":"u1"},
"spec":{"group":"example.com","scope":"Namespaced",
 "names":{"plural":"widgets","singular":"widget","kind":"Widget","listKind":"WidgetList","shortNames":["w"]},
 "conversion":{"strategy":"None"},
 "versions":[
  {"name":"v1","served":true,"storage":true,
   "schema":{"openAPIV3Schema":{"type":"object","properties":{
     "spec":{"type":"object","required":["size"],"properties":{
       "size":{"type":"integer","minimum":1},
       "color":{"type":"string","default":"red","enum":["red","blue"]},
       "replicas":{"type":"integer"},
       "labels":{"type":"object","x-kubernetes-preserve-unknown-fields":true}},
      "x-kubernetes-validations":[{"rule":"self.size < 100","message":"too big"},
       {"rule":"self.size >= oldSelf.size","message":"must not shrink"}]},
     "status":{"type":"object","properties":{"ready":{"type":"boolean"},"replicas":{"type":"integer"},
       "selector":{"type":"string"}}}}}},
   "subresources":{"status":{},"scale":{"specReplicasPath":".spec.replicas","statusReplicasPath":".status.replicas",
     "labelSelectorPath":".status.selector"}},
   "additionalPrinterColumns":[{"name":"Size","type":"integer","jsonPath":".spec.size"},
     {"name":"Color","type":"string","jsonPath":".spec.color"},
     {"name":"First","type":"string","jsonPath":".spec.labels.all[0]","priority":1},
     {"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}],
   "selectableFields":[{"jsonPath":".spec.color"}]},
  {"name":"v1beta1","served":true,"storage":false,"deprecated":true,
   "schema":{"openAPIV3Schema":{"type":"object","properties":{
     "spec":{"type":"object","properties":{"size":{"type":"integer"},"color":{"type":"string","default":"blue"}}}}}},
   "selectableFields":[{"jsonPath":".spec.size"},{"jsonPath":".spec.color"}]},
  {"name":"v1alpha1","served":false,"storage":false,"schema":{"openAPIV3Schema":{"type":"object"}}}]},
"status":{"acceptedNames":{"plural":"widgets","singular":"widget","kind":"Widget","listKind":"WidgetList",
 "shortNames":["w"]},"conditions":[{"type":"Established","status":"True"},{"type":"NamesAccepted","status":"True"}],
 "storedVersions":["v1"]}}`

// kinds returns the registrations of widgets, by version.
func kinds(t *testing.T) map[string]*api.Resource {
	t.Helper()
	d, err := customresource.Read([]byte(widgets))
	require.NoError(t, err)
	require.True(t, d.Served())
	all := map[string]*api.Resource{}
	served, _ := d.Kinds(nil)
	for _, r := range served {
		all[r.Version] = r
	}
	require.Len(t, all, 2, "v1alpha1 is not served")
	return all
}

// sent decodes a client's document.
func sent(t *testing.T, r *api.Resource, doc string) *customresource.Object {
	t.Helper()
	o := r.New().(*customresource.Object)
	strict, err := o.DecodeStrict([]byte(doc))
	require.NoError(t, err)
	require.Empty(t, strict)
	return o
}

func TestObject_RoundTripsThroughItsDocument(t *testing.T) {
	t.Parallel()
	const doc = `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a","labels":{"x":"<y>"}},` +
		`"spec":{"labels":{"deep":[1,2.5,"\u003cb\u003e",null,{"z":true}]},"size":3},"status":{"ready":false}}`
	o := sent(t, kinds(t)["v1"], doc)
	require.Equal(t, "a", o.Name)
	require.Equal(t, int64(3), o.Fields["spec"].(map[string]any)["size"])
	body, err := json.Marshal(o)
	require.NoError(t, err)
	require.JSONEq(t, doc, string(body))

	c := o.DeepCopyObject().(*customresource.Object)
	require.Equal(t, o, c)
	c.Fields["spec"].(map[string]any)["size"] = int64(4)
	c.Labels["x"] = "z"
	require.Equal(t, int64(3), o.Fields["spec"].(map[string]any)["size"])
	require.Equal(t, "<y>", o.Labels["x"])

	content := o.Content()
	require.Equal(t, "a", content["metadata"].(map[string]any)["name"])
	require.NotContains(t, content["metadata"], "creationTimestamp")
	require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(content, &struct{}{}))
}

// Kubernetes' decoder decodes unusual documents, and the server returns its errors.
func TestDecodeStrict_ReportsErrors(t *testing.T) {
	t.Parallel()
	v1 := kinds(t)["v1"]
	for doc, want := range map[string]struct {
		strict []string
		err    string
	}{
		`{"metadata":{"name":"a","nam":"b"}}`: {strict: []string{`unknown field "metadata.nam"`}},
		`{"spec":{"size":1,"size":2}}`:        {strict: []string{`duplicate field "spec.size"`}},
		`{"spec":{"sise":1},"extra":2}`:       {strict: []string{`unknown field "extra"`, `unknown field "spec.sise"`}},
		`{"metadata":{"labels":{"a":1}}}`:     {err: "json: cannot unmarshal number into Go struct field"},
		`{"kind":5}`:                          {err: ".kind accessor error: 5 is of the type int64, expected string"},
		`{"spec":`:                            {err: "unexpected end of JSON input"},
		`[]`:                                  {err: "json: cannot unmarshal array into Go value of type map[string]interface {}"},
		`{"spec":{"size":1}} {}`:              {err: "invalid character '{' after top-level value"},
		`null`:                                {},
		`{"metadata":null}`:                   {},
		`{"spec":{"size":null}}`:              {},
		`{"spec":{"labels":{"any":{"thing":[null]}}}}`: {},
	} {
		o := v1.New().(*customresource.Object)
		strict, err := o.DecodeStrict([]byte(doc))
		if want.err != "" {
			require.ErrorContains(t, err, want.err, doc)
			continue
		}
		require.NoError(t, err, doc)
		var texts []string
		for _, s := range strict {
			texts = append(texts, s.Error())
		}
		require.Equal(t, want.strict, texts, doc)
		require.NotNil(t, o.Fields, doc)
	}
}

func TestDecodeStrict_RejectsTrailingData(t *testing.T) {
	t.Parallel()
	for _, rest := range []string{" x", "{}", "]", " \x00"} {
		o := kinds(t)["v1"].New().(*customresource.Object)
		_, err := o.DecodeStrict([]byte(`{"spec":{"size":1}}` + rest))
		require.Error(t, err, rest)
	}
	sent(t, kinds(t)["v1"], `{"spec":{"size":1}}`+" \n")
}

func TestDecodeStored_BringsDocumentsUpToDate(t *testing.T) {
	t.Parallel()
	v1 := kinds(t)["v1"]
	for name, c := range map[string]struct{ stored, read string }{
		"defaults": {`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a","generation":3},"spec":{}}`,
			`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a","generation":3},"spec":{"color":"red"}}`},
		"fields of an older schema": {`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"generation":1},"old":1,
			"spec":{"color":"blue","gone":true}}`,
			`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"generation":1},"spec":{"color":"blue"}}`},
		"no generation": {`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{}}`,
			`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"generation":1}}`},
		"malformed metadata": {`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a","labels":{"a":1}}}`,
			`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a","generation":1}}`},
		"another version, with its defaults": {
			`{"apiVersion":"example.com/v1beta1","kind":"Widget","metadata":{"generation":1},"spec":{"size":1}}`,
			`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"generation":1},"spec":{"size":1,"color":"blue"}}`},
	} {
		o := v1.New()
		require.NoError(t, json.Unmarshal([]byte(c.stored), o), name)
		converted, err := v1.Convert(t.Context(), []api.Object{o})
		require.NoError(t, err, name)
		body, err := json.Marshal(converted[0])
		require.NoError(t, err, name)
		require.JSONEq(t, c.read, string(body), name)
	}
}
