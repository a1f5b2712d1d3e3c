package structural

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apimachinery/pkg/runtime"
)

// upstreamSchema converts the schema to kube-apiserver's type.
func upstreamSchema(t testing.TB, props *apiextensionsv1.JSONSchemaProps) *schema.Structural {
	var internal apiextensions.JSONSchemaProps
	err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(props, &internal, nil)
	require.NoError(t, err)
	s, err := schema.NewStructural(&internal)
	require.NoError(t, err)
	return s
}

// TestPrune_MatchesKubeAPIServer compares the pruned objects and the reported fields on random schemas and objects.
func TestPrune_MatchesKubeAPIServer(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2 * samples) {
		comparePruned(t, seed)
	}
}

func FuzzPrune_MatchesKubeAPIServer(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(comparePruned)
}

func comparePruned(t *testing.T, seed uint64) {
	r := newRandom(seed)
	props := r.schema(3)
	props.Type, props.XIntOrString = "object", false
	props.XEmbeddedResource = r.one(2)
	s, err := New(props)
	require.NoError(t, err)
	library := upstreamSchema(t, props)
	obj := r.object(props)
	if r.one(2) {
		obj["metadata"], obj["kind"] = r.any(2), "K"
	}
	copied := runtime.DeepCopyJSON(obj)
	unknown := s.Prune(obj, true)
	expected := pruning.PruneWithOptions(copied, library, true,
		schema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
	require.Equal(t, copied, obj, "seed %d: %s", seed, document(props))
	require.Equal(t, expected, unknown, "seed %d: %s", seed, document(props))
	require.Empty(t, s.Prune(obj, true), "what is left is known")
}

// TestValidateLists_MatchesKubeAPIServer compares the errors.
func TestValidateLists_MatchesKubeAPIServer(t *testing.T) {
	t.Parallel()
	found := 0
	for seed := range uint64(2 * samples) {
		r := newRandom(seed)
		props := r.schema(3)
		props.Type, props.XIntOrString = "object", false
		s, err := New(props)
		require.NoError(t, err)
		obj := r.object(props)
		var ours, expected []string
		for _, e := range s.ValidateLists(obj) {
			ours = append(ours, e.Error())
		}
		for _, e := range listtype.ValidateListSetsAndMaps(nil, upstreamSchema(t, props), obj) {
			expected = append(expected, e.Error())
		}
		slices.Sort(ours)
		slices.Sort(expected)
		require.Equal(t, expected, ours, "seed %d: %s by %s", seed, document(obj), document(props))
		found += len(ours)
	}
	require.Positive(t, found, "the comparison says something")
}

// TestDefault_IsIdempotent also checks that Default changes no existing value other than null.
func TestDefault_IsIdempotent(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2 * samples) {
		defaultTwice(t, seed)
	}
}

func FuzzDefault_IsIdempotent(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(defaultTwice)
}

func defaultTwice(t *testing.T, seed uint64) {
	r := newRandom(seed)
	props := r.schema(3)
	props.Type, props.XIntOrString = "object", false
	s, err := New(props)
	require.NoError(t, err)
	obj := r.object(props)
	before := runtime.DeepCopyJSON(obj)
	s.Default(obj)
	once := runtime.DeepCopyJSON(obj)
	s.Default(obj)
	require.Equal(t, once, obj, "seed %d: %s by %s", seed, document(before), document(props))
	requireKept(t, before, obj)
	s.DropNulls(obj)
	dropped := runtime.DeepCopyJSON(obj)
	s.DropNulls(obj)
	require.Equal(t, dropped, obj)
}

// requireKept requires each value of before to be in after.
func requireKept(t *testing.T, before, after any) {
	switch before := before.(type) {
	case nil: // a default may replace it
	case map[string]any:
		for name, value := range before {
			require.Contains(t, after, name)
			requireKept(t, value, after.(map[string]any)[name])
		}
	case []any:
		require.Len(t, after, len(before))
		for i, value := range before {
			requireKept(t, value, after.([]any)[i])
		}
	default:
		require.Equal(t, before, after)
	}
}

func TestDefault(t *testing.T) {
	t.Parallel()
	const schema = `
type: object
properties:
  spec:
    type: object
    default: {}
    properties:
      port: {type: integer, default: 80}
      name: {type: string, nullable: true, default: web}
      absent: {type: object, properties: {x: {type: string, default: one}}}
  list:
    type: array
    items: {type: object, properties: {protocol: {type: string, default: TCP}}}
  map:
    type: object
    additionalProperties: {type: object, default: {a: b}, properties: {c: {type: integer, default: 3}}}
  numbers:
    type: array
    items: {type: integer, default: 7}
`
	for _, c := range []struct{ name, in, want string }{
		{"defaults within defaults", `{}`, `{spec: {port: 80, name: web}}`},
		{"what is there stays", `{spec: {port: 0, name: ""}}`, `{spec: {port: 0, name: ""}}`},
		{"null without nullable", `{spec: {port: null}}`, `{spec: {port: 80, name: web}}`},
		{"null that is nullable", `{spec: {name: null}}`, `{spec: {port: 80, name: null}}`},
		{"an object that is missing stays so", `{spec: {absent: {}}}`,
			`{spec: {absent: {x: one}, port: 80, name: web}}`},
		{"items", `{spec: {name: a, port: 1}, list: [{}, {protocol: UDP}]}`,
			`{spec: {name: a, port: 1}, list: [{protocol: TCP}, {protocol: UDP}]}`},
		{"entries of a map", `{spec: {name: a, port: 1}, map: {x: null, z: {}}}`,
			`{spec: {name: a, port: 1}, map: {x: {a: b, c: 3}, z: {c: 3}}}`},
		{"null items", `{spec: {name: a, port: 1}, numbers: [1, null]}`,
			`{spec: {name: a, port: 1}, numbers: [1, 7]}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			obj := read(t, c.in)
			parse(t, schema).Default(obj)
			require.Equal(t, read(t, c.want), obj)
		})
	}
}

func TestDropNulls(t *testing.T) {
	t.Parallel()
	s := parse(t, `
type: object
properties:
  plain: {type: string}
  nullable: {type: string, nullable: true}
  defaulted: {type: string, default: a}
  deep: {type: object, properties: {x: {type: integer}}}
  list: {type: array, items: {type: object, properties: {x: {type: integer}}}}
`)
	obj := read(t, `{plain: null, nullable: null, defaulted: null, deep: {x: null}, list: [{x: null}, null],
		other: null}`)
	s.DropNulls(obj)
	require.Equal(t, read(t, `{nullable: null, defaulted: null, deep: {}, list: [{}, null], other: null}`), obj)
}

const embedding = `
type: object
properties:
  template:
    type: object
    x-kubernetes-embedded-resource: true
    x-kubernetes-preserve-unknown-fields: true
  list:
    type: array
    items: {type: object, x-kubernetes-embedded-resource: true, properties: {spec: {type: object}}}
`

func TestCoerce(t *testing.T) {
	t.Parallel()
	s := parse(t, embedding)
	obj := read(t, `{template: {kind: A, metadata: {name: a, labels: {x: one}, unheard: 1}},
		list: [{metadata: {creationTimestamp: null, name: b}}]}`)
	unknown, err := s.Coerce(obj, false, true)
	require.Nil(t, err)
	require.Equal(t, []string{"template.metadata.unheard"}, unknown)
	require.Equal(t, read(t, `{template: {kind: A, metadata: {name: a, labels: {x: one}}},
		list: [{metadata: {name: b}}]}`), obj)

	const malformed = `{template: {kind: 3, metadata: {name: [], generateName: a-}}}`
	_, err = s.Coerce(read(t, malformed), false, true)
	require.ErrorContains(t, err, `template.kind: Invalid value: 3: must be a string`)
	_, err = s.Coerce(read(t, `{list: [{metadata: {name: []}}]}`), false, true)
	require.ErrorContains(t, err, `list[0].metadata: Invalid value: {"name":[]}: json: cannot unmarshal array`)
	obj = read(t, malformed)
	_, err = s.Coerce(obj, true, true)
	require.Nil(t, err)
	require.Equal(t, read(t, `{template: {metadata: {generateName: a-}}}`), obj)
}

func TestValidateEmbedded(t *testing.T) {
	t.Parallel()
	s := parse(t, embedding)
	for _, c := range []struct{ object, want string }{
		{`{template: {apiVersion: v1, kind: Pod}}`, ``},
		{`{template: {apiVersion: a/v1, kind: Pod, metadata: {name: b, namespace: c}}}`, ``},
		{`{template: {kind: Pod}}`, `template.apiVersion: Required value`},
		{`{template: {apiVersion: v1}}`, `template.kind: Required value`},
		{`{template: {apiVersion: "", kind: Pod}}`, `template.apiVersion: Invalid value: "": must not be empty`},
		{`{template: {apiVersion: 1, kind: Pod}}`, `template.apiVersion: Invalid value: 1: must be a string`},
		{`{template: {apiVersion: a/b/c, kind: Pod}}`,
			`template.apiVersion: Invalid value: "a/b/c": unexpected GroupVersion`},
		{`{template: {apiVersion: v1, kind: a/b}}`,
			`template.kind: Invalid value: "a/b": may have mixed case, but should`},
		{`{list: [{apiVersion: v1, kind: Pod, metadata: {name: a/b}}]}`,
			`list[0].metadata.name: Invalid value: "a/b": may not contain '/'`},
		{`{list: [{apiVersion: v1, kind: Pod, metadata: {labels: {"-": b}}}]}`,
			`list[0].metadata.labels: Invalid value: "-"`},
	} {
		t.Run(c.object, func(t *testing.T) {
			t.Parallel()
			errs := s.ValidateEmbedded(read(t, c.object))
			if c.want == "" {
				require.Empty(t, errs)
				return
			}
			require.Len(t, errs, 1)
			require.ErrorContains(t, errs[0], c.want)
		})
	}
}
