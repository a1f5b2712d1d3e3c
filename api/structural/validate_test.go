package structural

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"
	"sigs.k8s.io/yaml"

	"github.com/coxswain-dev/coxswain/api/field"
)

// samples is the number of random schemas per test, for a second or two under the race detector. They are the same
// each time; go test -fuzz generates others.
const samples = 150

func document(value any) string {
	data, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return string(data)
}

// parse parses a schema in YAML.
func parse(t testing.TB, source string) *Schema {
	t.Helper()
	var props apiextensionsv1.JSONSchemaProps
	require.NoError(t, yaml.UnmarshalStrict([]byte(source), &props))
	s, err := New(&props)
	require.NoError(t, err)
	return s
}

// read parses an object in YAML.
func read(t testing.TB, source string) map[string]any {
	t.Helper()
	data, err := yaml.YAMLToJSON([]byte(source))
	require.NoError(t, err)
	var obj any
	require.NoError(t, decode(&apiextensionsv1.JSON{Raw: data}, &obj))
	return obj.(map[string]any)
}

// openAPI converts a schema to the form that kube-apiserver passes to kube-openapi's validator.
func openAPI(t testing.TB, props *apiextensionsv1.JSONSchemaProps) *spec.Schema {
	var s spec.Schema
	require.NoError(t, json.Unmarshal([]byte(document(props)), &s))
	translate(t, &s, props)
	return &s
}

func translate(t testing.TB, s *spec.Schema, props *apiextensionsv1.JSONSchemaProps) {
	s.Format = supportedFormat(props, typesOf(props))
	if props.XIntOrString {
		s.Type = spec.StringOrArray{"integer", "string"}
	}
	for i := range s.Enum {
		require.NoError(t, decode(&props.Enum[i], &s.Enum[i]))
	}
	for name, field := range s.Properties {
		from := props.Properties[name]
		translate(t, &field, &from)
		s.Properties[name] = field
	}
	if props.AdditionalProperties != nil && props.AdditionalProperties.Schema != nil {
		translate(t, s.AdditionalProperties.Schema, props.AdditionalProperties.Schema)
	}
	if props.Items != nil {
		translate(t, s.Items.Schema, props.Items.Schema)
	}
	for i := range props.AllOf {
		translate(t, &s.AllOf[i], &props.AllOf[i])
	}
	for i := range props.AnyOf {
		translate(t, &s.AnyOf[i], &props.AnyOf[i])
	}
	for i := range props.OneOf {
		translate(t, &s.OneOf[i], &props.OneOf[i])
	}
	if props.Not != nil {
		translate(t, s.Not, props.Not)
	}
}

// TestValidate_MatchesKubeOpenAPI compares verdicts and messages on random schemas and objects.
func TestValidate_MatchesKubeOpenAPI(t *testing.T) {
	t.Parallel()
	for seed := range uint64(samples) {
		compare(t, seed)
	}
}

func FuzzValidate_MatchesKubeOpenAPI(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) { compare(t, seed) })
}

func compare(t *testing.T, seed uint64) {
	r := newRandom(seed)
	props := r.schema(3)
	props.Type, props.XIntOrString = "object", false
	s, err := New(props)
	require.NoError(t, err)
	library := openAPI(t, props)
	for range 6 {
		obj := r.object(props)
		upstream := map[string]bool{}
		var fields []string
		for _, e := range validate.NewSchemaValidator(library, nil, "", strfmt.Default).Validate(obj).Errors {
			upstream[e.Error()] = true
			fields = append(fields, fieldError(e, nil).Error())
		}
		if len(upstream) > 50 {
			continue // close to this package's limit, which the library does not have
		}
		errs, err := s.Validate(t.Context(), obj)
		require.NoError(t, err)
		var ours []string
		for _, e := range errs {
			ours = append(ours, e.Error())
		}
		slices.Sort(fields)
		slices.Sort(ours)
		if !slices.Equal(slices.Compact(fields), slices.Compact(ours)) {
			t.Fatalf("seed %d\nschema %s\nobject %s\nkube-openapi %v\nhere %v\nmessages %v", seed, document(props),
				document(obj), fields, ours, slices.Sorted(maps.Keys(upstream)))
		}
	}
}

// TestValidateUpdate_IgnoresUnchangedValues: an update without changes is valid, even if the schema would reject a
// create, and each fault of any other update is also a fault of the create. (With combinations of schemas neither has
// to be true: an ignored fault in a branch of not makes the object invalid, and a different branch of anyOf may be the
// closest.)
func TestValidateUpdate_IgnoresUnchangedValues(t *testing.T) {
	t.Parallel()
	forgiven := 0
	for seed := range uint64(samples) {
		r := newRandom(seed)
		r.plain = true
		props := r.schema(3)
		props.Type, props.XIntOrString = "object", false
		s, err := New(props)
		require.NoError(t, err)
		obj := r.object(props)
		created := messages(s.Validate(t.Context(), obj))
		same := messages(s.ValidateUpdate(t.Context(), obj, runtime.DeepCopyJSON(obj)))
		if equal(s, obj, obj) {
			require.Empty(t, same, "seed %d: %s by %s", seed, document(obj), document(props))
		}
		if changed, ok := r.changed(obj).(map[string]any); ok {
			updated := messages(s.ValidateUpdate(t.Context(), obj, changed))
			require.Subset(t, created, updated, "seed %d: %s by %s", seed, document(obj), document(props))
			forgiven += len(created) - len(updated)
		}
	}
	require.Greater(t, forgiven, 20, "the test says something")
}

func messages(errs field.ErrorList, err error) (all []string) {
	if err != nil {
		panic(err)
	}
	for _, e := range errs {
		all = append(all, e.Error())
	}
	return all
}

// ratcheted is a schema that rejects every value, with lists of each kind.
const ratcheted = `
type: object
properties:
  apiVersion: {type: string}
  kind: {type: string, maxLength: 1}
  name: {type: string, maxLength: 2}
  required: {type: object, required: [a], properties: {a: {type: string}, b: {type: string, enum: [x]}}}
  keyed:
    type: array
    x-kubernetes-list-type: map
    x-kubernetes-list-map-keys: [k, l]
    items: {type: object, properties: {k: {type: string}, l: {type: integer}, v: {type: string, maxLength: 1}}}
  plain: {type: array, items: {type: string, maxLength: 1}}
  set: {type: array, x-kubernetes-list-type: set, items: {type: string, maxLength: 1}}
  map: {type: object, additionalProperties: {type: string, maxLength: 1}}
  free: {type: object, x-kubernetes-preserve-unknown-fields: true, required: [r]}
`

func TestValidateUpdate(t *testing.T) {
	t.Parallel()
	s := parse(t, ratcheted)
	for _, c := range []struct{ name, old, new, want string }{
		{"a field that stays", `{name: abc}`, `{name: abc, map: {}}`, ``},
		{"a field that changes", `{name: abc}`, `{name: abcd}`, `name: Too long`},
		{"a new field", `{}`, `{name: abc}`, `name: Too long`},
		{"what is missing stays missing", `{required: {b: x}}`, `{required: {b: x}, name: a}`, ``},
		{"beside another change", `{required: {}}`, `{required: {b: x}}`, `required.a: Required value`},
		{"within one", `{required: {b: y, a: c}}`, `{required: {b: y, a: d}}`, ``},
		{"an item by its keys", `{keyed: [{k: a, l: 1, v: bad}]}`,
			`{keyed: [{k: b, l: 1, v: c}, {k: a, l: 1, v: bad}]}`, ``},
		{"an item that changes", `{keyed: [{k: a, l: 1, v: bad}]}`,
			`{keyed: [{k: a, l: 1, v: worse}]}`, `keyed[0].v: Too long`},
		{"an item with another key", `{keyed: [{k: a, l: 1, v: bad}]}`,
			`{keyed: [{k: a, l: 2, v: bad}]}`, `keyed[0].v: Too long`},
		{"an item without a key", `{keyed: [{k: a, v: bad}], name: a}`, `{keyed: [{k: a, v: bad}, {k: b, l: 1}]}`,
			`keyed[0].v: Too long`},
		{"lists in another order", `{keyed: [{k: a, l: 1, v: bad}, {k: b, l: 1, v: bad}]}`,
			`{keyed: [{k: b, l: 1, v: bad}, {k: a, l: 1, v: bad}]}`, ``},
		{"a list that stays", `{plain: [bad]}`, `{plain: [bad], name: a}`, ``},
		{"a list that grows", `{plain: [bad]}`, `{plain: [bad, a]}`, `plain[0]: Too long`},
		{"a set that grows", `{set: [bad]}`, `{set: [bad, a]}`, `set[0]: Too long`},
		{"an entry of a map", `{map: {a: bad}}`, `{map: {a: bad, b: c}}`, ``},
		{"kind, which is never compared", `{kind: Foo}`, `{kind: Foo, name: a}`, `kind: Too long`},
		{"fields without a schema, which are never the same", `{free: {x: 1}}`, `{free: {x: 1}, name: a}`,
			`free.r: Required value`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			errs, err := s.ValidateUpdate(t.Context(), read(t, c.new), read(t, c.old))
			require.NoError(t, err)
			if c.want == "" {
				require.Empty(t, errs)
				return
			}
			require.Len(t, errs, 1)
			require.ErrorContains(t, errs[0], c.want)
		})
	}
}

// TestValidate_IsBounded: an attacker's object is rejected quickly, with a hundred errors.
func TestValidate_IsBounded(t *testing.T) {
	t.Parallel()
	s := parse(t, `
type: object
properties:
  list: {type: array, items: {anyOf: [{type: string, maxLength: 1}, {type: integer, maximum: 3}]}}
`)
	list := make([]any, 200_000)
	for i := range list {
		list[i] = "long"
	}
	errs, err := s.Validate(t.Context(), map[string]any{"list": list})
	require.NoError(t, err)
	require.LessOrEqual(t, len(errs), field.MaxErrors)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.Validate(ctx, map[string]any{"list": list})
	require.ErrorIs(t, err, context.Canceled)
}

// TestNew_RejectsNonStructuralSchemas: such definitions are rejected, and a stored one causes no panic.
func TestNew_RejectsNonStructuralSchemas(t *testing.T) {
	t.Parallel()
	for name, props := range map[string]apiextensionsv1.JSONSchemaProps{
		"a reference":       {Ref: new("#/definitions/a")},
		"patterns of names": {PatternProperties: map[string]apiextensionsv1.JSONSchemaProps{"a": {}}},
		"a list of schemas": {Items: &apiextensionsv1.JSONSchemaPropsOrArray{
			JSONSchemas: make([]apiextensionsv1.JSONSchemaProps, 1)}},
		"an invalid pattern":  {Pattern: "("},
		"an invalid default":  {Default: &apiextensionsv1.JSON{Raw: []byte("{")}},
		"dependencies":        {Dependencies: apiextensionsv1.JSONSchemaDependencies{"a": {}}},
		"additional items":    {AdditionalItems: &apiextensionsv1.JSONSchemaPropsOrBool{}},
		"a schema too deep":   *nested(maxDepth + 1),
		"an invalid property": {Properties: map[string]apiextensionsv1.JSONSchemaProps{"a": {Pattern: "("}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := New(&props)
			require.Error(t, err)
		})
	}
	_, err := New(nested(maxDepth - 1))
	require.NoError(t, err)
}

func nested(depth int) *apiextensionsv1.JSONSchemaProps {
	props := &apiextensionsv1.JSONSchemaProps{}
	for range depth {
		props = &apiextensionsv1.JSONSchemaProps{Not: props}
	}
	return props
}
