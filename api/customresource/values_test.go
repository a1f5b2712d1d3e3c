package customresource_test

import (
	_ "embed"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/apiextensions"
	"github.com/coxswain-dev/coxswain/api/customresource"
)

// kindOfField returns the registration of a kind with a field x with a schema in YAML. The server would accept the
// definition.
func kindOfField(t *testing.T, schema string) *api.Resource {
	t.Helper()
	doc, err := yaml.YAMLToJSON([]byte(`
kind: CustomResourceDefinition
apiVersion: apiextensions.k8s.io/v1
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, kind: Widget}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {x: ` + schema + `}}}}
`))
	require.NoError(t, err, schema)
	var crd apiextensionsv1.CustomResourceDefinition
	require.NoError(t, json.Unmarshal(doc, &crd), schema)
	definitions := apiextensions.Kinds()[0]
	definitions.Default(&crd)
	definitions.PrepareCreate(&crd)
	require.Empty(t, definitions.ValidateCreate(&crd), schema)
	crd.Status.AcceptedNames = crd.Spec.Names
	doc, err = json.Marshal(&crd)
	require.NoError(t, err)
	d, err := customresource.Read(doc)
	require.NoError(t, err)
	served, _ := d.Kinds(nil)
	require.Len(t, served, 1)
	return served[0]
}

// withField returns the document of an object with a value of field x. nil means an object without the field.
func withField(value json.RawMessage) []byte {
	if value == nil {
		return []byte(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a"}}`)
	}
	return []byte(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a"},"x":` + string(value) + `}`)
}

// faults creates an object with the value, and returns the errors, except the one about the error limit.
func faults(t *testing.T, res *api.Resource, value json.RawMessage) (all []string) {
	t.Helper()
	o := res.New().(*customresource.Object)
	if _, err := o.DecodeStrict(withField(value)); err != nil {
		return []string{err.Error()}
	}
	res.Default(o)
	errs, _, err := res.Check(t.Context(), o, nil, "")
	require.NoError(t, err)
	for _, e := range errs {
		if text := e.Error(); !strings.Contains(text, "some validation rules were not checked") {
			all = append(all, text)
		}
	}
	return all
}

//go:embed testdata/values.yaml
var values []byte

func TestCheck_OfValues(t *testing.T) {
	t.Parallel()
	var table []struct {
		Name    string
		Schema  json.RawMessage
		Accepts []json.RawMessage
		Refuses []struct {
			Value  json.RawMessage
			Errors []string
		}
	}
	require.NoError(t, yaml.UnmarshalStrict(values, &table))
	accepted, refused := 0, 0
	for _, c := range table {
		accepted, refused = accepted+len(c.Accepts), refused+len(c.Refuses)
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			res := kindOfField(t, string(c.Schema))
			for _, value := range c.Accepts {
				require.Empty(t, faults(t, res, value), "%s", value)
			}
			for _, r := range c.Refuses {
				require.NotEmpty(t, r.Errors)
				require.Equal(t, r.Errors, faults(t, res, r.Value), "%s", r.Value)
			}
		})
	}
	require.Greater(t, accepted, 300)
	require.Greater(t, refused, 300)
}

//go:embed testdata/pruning.yaml
var pruning []byte

func TestDecodeStrict_Prunes(t *testing.T) {
	t.Parallel()
	var table []struct {
		Schema json.RawMessage
		Cases  []struct {
			Sends, Keeps json.RawMessage
			Unknown      []string
		}
	}
	require.NoError(t, yaml.UnmarshalStrict(pruning, &table))
	for _, entry := range table {
		res := kindOfField(t, string(entry.Schema))
		for _, c := range entry.Cases {
			o := res.New().(*customresource.Object)
			strict, err := o.DecodeStrict(withField(c.Sends))
			require.NoError(t, err, "%s", c.Sends)
			var unknown []string
			for _, e := range strict {
				unknown = append(unknown, strings.TrimSuffix(strings.TrimPrefix(e.Error(), `unknown field "`), `"`))
			}
			require.Equal(t, c.Unknown, unknown, "%s by %s", c.Sends, entry.Schema)
			require.JSONEq(t, string(c.Keeps), field(t, o), "%s by %s", c.Sends, entry.Schema)
		}
	}
}

// field returns the JSON of the field x, or "null" if there is none.
func field(t *testing.T, o *customresource.Object) string {
	t.Helper()
	doc, err := json.Marshal(o.Fields["x"])
	require.NoError(t, err)
	return string(doc)
}

//go:embed testdata/defaults.yaml
var defaults []byte

// TestDefault_IsTheSameForRequestsAndStoredObjects compares the defaults of a client's object and of a stored one.
func TestDefault_IsTheSameForRequestsAndStoredObjects(t *testing.T) {
	t.Parallel()
	var table []struct {
		Schema json.RawMessage
		Cases  []struct{ Sends, Becomes json.RawMessage }
	}
	require.NoError(t, yaml.UnmarshalStrict(defaults, &table))
	for _, entry := range table {
		res := kindOfField(t, string(entry.Schema))
		for _, c := range entry.Cases {
			sent, stored := res.New().(*customresource.Object), res.New().(*customresource.Object)
			_, err := sent.DecodeStrict(withField(c.Sends))
			require.NoError(t, err, "%s", c.Sends)
			res.Default(sent)
			require.NoError(t, stored.DecodeStored(withField(c.Sends)))
			require.JSONEq(t, string(c.Becomes), field(t, sent), "%s by %s", c.Sends, entry.Schema)
			require.Equal(t, field(t, sent), field(t, stored), "%s by %s", c.Sends, entry.Schema)
			res.Default(sent)
			require.JSONEq(t, string(c.Becomes), field(t, sent), "the second time")
			errs, _, err := res.Check(t.Context(), sent, nil, "")
			require.NoError(t, err)
			require.Empty(t, errs, "%s by %s", c.Sends, entry.Schema)
		}
	}
}
