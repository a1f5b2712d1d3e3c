package structural

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

func schemaOf(t *testing.T, doc string) *Schema {
	t.Helper()
	var props apiextensionsv1.JSONSchemaProps
	require.NoError(t, json.Unmarshal([]byte(doc), &props))
	s, err := New(&props)
	require.NoError(t, err)
	return s
}

func TestSchema_DescribesOwnership(t *testing.T) {
	t.Parallel()
	s := schemaOf(t, `{"type":"object","x-kubernetes-map-type":"atomic","nullable":true,"properties":{
		"b":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["k"],"items":{"type":"object",
		"properties":{"k":{"type":"string","format":"uuid","default":"x"}}}},
		"a":{"x-kubernetes-int-or-string":true},"c":{"type":"object","additionalProperties":true},
		"d":{"type":"object","x-kubernetes-embedded-resource":true,"x-kubernetes-preserve-unknown-fields":true}}}`)
	var names []string
	for name := range s.Properties() {
		names = append(names, name)
	}
	require.Equal(t, []string{"a", "b", "c", "d"}, names)
	require.True(t, s.AtomicMap() && s.Nullable())
	require.Equal(t, "object", s.Type())
	require.Empty(t, s.Property("a").Type())
	list := s.Property("b")
	require.Equal(t, "map", list.ListType())
	require.Equal(t, []string{"k"}, list.ListMapKeys())
	require.Equal(t, "x", list.Items().Property("k").DefaultValue())
	require.Equal(t, "uuid", list.Items().Property("k").Format())
	additional, allowed, stated := s.Property("c").AdditionalProperties()
	require.True(t, additional == nil && allowed && stated)
	require.True(t, s.Property("d").EmbedsResource() && s.Property("d").PreservesUnknownFields())

	var none *Schema
	_, _, stated = none.AdditionalProperties()
	require.False(t, stated || none.AtomicMap() || none.Nullable() || none.EmbedsResource() ||
		none.PreservesUnknownFields())
	require.Empty(t, none.Type()+none.Format()+none.Items().Property("a").Type())
	require.Nil(t, none.DefaultValue())
	require.Empty(t, slices.Collect(func(yield func(string) bool) {
		for name := range none.Properties() {
			if !yield(name) {
				return
			}
		}
	}))
	require.Equal(t, "atomic", none.ListType())
	require.Empty(t, none.ListMapKeys())
}

// A client may send a list where the schema declares an object.
func TestDefault_LeavesOtherTypes(t *testing.T) {
	t.Parallel()
	s := schemaOf(t, `{"type":"object","properties":{"spec":{"type":"object","properties":{
		"a":{"type":"integer","default":1}}}}}`)
	obj := map[string]any{"spec": []any{nil, map[string]any{}}}
	s.Default(obj)
	require.Equal(t, map[string]any{"spec": []any{nil, map[string]any{}}}, obj)
}
