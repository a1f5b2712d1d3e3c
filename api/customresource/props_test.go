package customresource_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/coxswain-dev/coxswain/api/customresource"
)

// Props bypasses the schema's own decoding methods. This test compares it with them.
func TestProps_MatchKubernetesDecoder(t *testing.T) {
	t.Parallel()
	for _, schema := range []string{
		`{"type":"object","properties":{"a":{"items":{"type":"array","items":{"type":"string","default":"x"}}}}}`,
		`{"additionalProperties":true,"properties":{"a":{"additionalProperties":false},
			"b":{"additionalProperties":{"additionalProperties":{"type":"string"}}}}}`,
		`{"items":[{"type":"string"},{"type":"object"}]}`,
		`{"default":null,"enum":[null,1,"a",{"b":[1.5]}],"example":{"big":9223372036854775807}}`,
		`{"default":{"a":[ 1, 2 ]},"x-kubernetes-preserve-unknown-fields":true,"x-kubernetes-list-map-keys":["a"]}`,
		`{"allOf":[{"items":{"anyOf":[{"type":"integer"},{"type":"string"}]}}],"not":{"required":["a"]}}`,
		`{"maximum":5,"minLength":3,"nullable":true,
			"x-kubernetes-validations":[{"rule":"true","reason":"FieldValueInvalid"}]}`,
		`{"dependencies":{"a":["b"],"c":{"type":"string"}},"items":null,"additionalItems":false}`,
		`null`,
	} {
		var want *apiextensionsv1.JSONSchemaProps
		require.NoError(t, json.Unmarshal([]byte(schema), &want), schema)
		d, err := customresource.Read([]byte(strings.NewReplacer(`"v1alpha1","served":false`, `"v1alpha1","served":true`,
			`"openAPIV3Schema":{"type":"object"}`, `"openAPIV3Schema":`+schema).Replace(widgets)))
		require.NoError(t, err)
		served, _ := d.Kinds(nil)
		for _, r := range served {
			if r.Version != "v1alpha1" {
				continue
			}
			v := r.New().(*customresource.Object).Version()
			require.Same(t, d, v.Definition())
			got, err := v.Props()
			require.NoError(t, err, schema)
			require.Equal(t, want, got, schema)
		}
	}
}

func TestDefinition_HashIsOfTheSpec(t *testing.T) {
	t.Parallel()
	hash := func(doc string) [32]byte {
		d, err := customresource.Read([]byte(doc))
		require.NoError(t, err)
		return d.Hash()
	}
	was := hash(widgets)
	require.Equal(t, was, hash(strings.Replace(widgets, `"uid":"u1"`, `"uid":"u2"`, 1)))
	require.NotEqual(t, was, hash(strings.Replace(widgets, `"minimum":1`, `"minimum":2`, 1)))
}
