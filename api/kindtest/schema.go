package kindtest

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/randfill"
)

// FillSchema generates a random schema of a few levels, for a randfill.Filler. The type contains itself in twelve
// fields, so that filling it like other types would never end.
func FillSchema(p *apiextensionsv1.JSONSchemaProps, c randfill.Continue) {
	*p = apiextensionsv1.JSONSchemaProps{UniqueItems: c.Bool(), Nullable: c.Bool(), XEmbeddedResource: c.Bool(),
		XIntOrString: c.Bool()}
	for _, field := range []any{&p.Description, &p.Format, &p.Pattern, &p.Maximum, &p.MaxLength, &p.Default, &p.Enum,
		&p.XValidations, &p.XListType, &p.XPreserveUnknownFields} {
		c.Fill(field)
	}
	child := func() *apiextensionsv1.JSONSchemaProps {
		below := &apiextensionsv1.JSONSchemaProps{}
		FillSchema(below, c)
		return below
	}
	switch c.Intn(8) {
	case 0:
		p.Type, p.Properties = "object", map[string]apiextensionsv1.JSONSchemaProps{"a": *child(), "b": *child()}
	case 1:
		p.Type, p.Items = "array", &apiextensionsv1.JSONSchemaPropsOrArray{Schema: child()}
	case 2:
		p.AdditionalProperties = &apiextensionsv1.JSONSchemaPropsOrBool{Allows: true, Schema: child()}
	case 3:
		p.AdditionalProperties = &apiextensionsv1.JSONSchemaPropsOrBool{Allows: c.Bool()}
	case 4:
		p.AnyOf = []apiextensionsv1.JSONSchemaProps{*child(), *child()}
	default:
		c.Fill(&p.Type)
	}
}
