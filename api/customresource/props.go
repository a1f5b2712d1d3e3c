package customresource

import (
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// schema decodes the schema of one version and skips the others. It returns nil if the version has none.
func (d *Definition) schema(version string) (*apiextensionsv1.JSONSchemaProps, error) {
	var spec struct {
		Versions []struct {
			Name   string         `json:"name"`
			Schema jsontext.Value `json:"schema"`
		} `json:"versions"`
	}
	if err := json.Unmarshal(d.spec, &spec); err != nil {
		return nil, fmt.Errorf("reading the schemas of %s: %w", d.Name, err)
	}
	for _, v := range spec.Versions {
		if v.Name != version || len(v.Schema) == 0 {
			continue
		}
		var schema apiextensionsv1.CustomResourceValidation
		if err := json.Unmarshal(v.Schema, &schema, json.WithUnmarshalers(schemaParts)); err != nil {
			return nil, fmt.Errorf("reading the schema of %s in %s: %w", d.Name, version, err)
		}
		return schema.OpenAPIV3Schema, nil
	}
	return nil, nil
}

// schemaParts replaces the decoding methods of three types, which decode the schemas below them once for each level
// above.
var schemaParts = json.JoinUnmarshalers(
	json.UnmarshalFromFunc(func(decoder *jsontext.Decoder, target *apiextensionsv1.JSONSchemaPropsOrArray) error {
		if decoder.PeekKind() == '{' {
			return json.UnmarshalDecode(decoder, &target.Schema)
		}
		return json.UnmarshalDecode(decoder, &target.JSONSchemas)
	}),
	json.UnmarshalFromFunc(func(decoder *jsontext.Decoder, target *apiextensionsv1.JSONSchemaPropsOrBool) error {
		if decoder.PeekKind() == '{' {
			target.Allows = true
			return json.UnmarshalDecode(decoder, &target.Schema)
		}
		return json.UnmarshalDecode(decoder, &target.Allows)
	}),
	json.UnmarshalFromFunc(func(decoder *jsontext.Decoder, target *apiextensionsv1.JSON) error {
		value, err := decoder.ReadValue()
		if err == nil && value.Kind() != 'n' {
			target.Raw = value.Clone()
		}
		return err
	}),
)
