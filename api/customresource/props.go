package customresource

import (
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// schema decodes the schema of one version; nil if it has none. The schemas of the others are skipped.
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

// schemaParts replace the methods of three types, which decode the schema below them once for each level above it.
var schemaParts = json.JoinUnmarshalers(
	json.UnmarshalFromFunc(func(from *jsontext.Decoder, to *apiextensionsv1.JSONSchemaPropsOrArray) error {
		if from.PeekKind() == '{' {
			return json.UnmarshalDecode(from, &to.Schema)
		}
		return json.UnmarshalDecode(from, &to.JSONSchemas)
	}),
	json.UnmarshalFromFunc(func(from *jsontext.Decoder, to *apiextensionsv1.JSONSchemaPropsOrBool) error {
		if from.PeekKind() == '{' {
			to.Allows = true
			return json.UnmarshalDecode(from, &to.Schema)
		}
		return json.UnmarshalDecode(from, &to.Allows)
	}),
	json.UnmarshalFromFunc(func(from *jsontext.Decoder, to *apiextensionsv1.JSON) error {
		value, err := from.ReadValue()
		if err == nil && value.Kind() != 'n' {
			to.Raw = value.Clone()
		}
		return err
	}),
)
