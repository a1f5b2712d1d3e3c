package openapi

import (
	"errors"
	"fmt"
	"reflect"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/json"
)

// errNotStructural is of a schema that kube-apiserver does not publish either.
var errNotStructural = errors.New("openapi: the schema is not structural")

var structuralTypes = []string{"", "array", "boolean", "integer", "number", "object", "string"}

// convert writes the schema of a definition in the dialect. In version 3 that is the schema as it is written, with a
// few additions. Version 2 has no alternatives and no null, and its clients can't read all that it has.
func (d *definitions) convert(to *spec.Schema, p *apiextensionsv1.JSONSchemaProps) error {
	if p.ID != "" || p.Schema != "" || p.Ref != nil && *p.Ref != "" || p.PatternProperties != nil ||
		p.Dependencies != nil || p.AdditionalItems != nil || p.Definitions != nil ||
		p.Items != nil && p.Items.JSONSchemas != nil || !slices.Contains(structuralTypes, p.Type) {
		return errNotStructural
	}
	convertChecks(to, p)
	if err := d.convertValues(to, p); err != nil {
		return err
	}
	if err := d.convertFields(to, p); err != nil {
		return err
	}
	markSchema(to, p)
	if d.v3 {
		if err := d.convertJunctors(to, p); err != nil {
			return err
		}
	} else {
		simplify(to, p)
	}
	if p.XEmbeddedResource && (d.v3 || !preserves(p)) {
		d.embed(to)
	}
	return nil
}

// convertChecks copies what has the same form on both sides.
func convertChecks(to *spec.Schema, p *apiextensionsv1.JSONSchemaProps) {
	if p.Type != "" {
		to.Type = spec.StringOrArray{p.Type}
	}
	to.Description, to.Title, to.Format, to.Nullable = p.Description, p.Title, p.Format, p.Nullable
	if p.ExternalDocs != nil {
		to.ExternalDocs = &spec.ExternalDocumentation{Description: p.ExternalDocs.Description, URL: p.ExternalDocs.URL}
	}
	to.Maximum, to.ExclusiveMaximum, to.Minimum, to.ExclusiveMinimum =
		p.Maximum, p.ExclusiveMaximum, p.Minimum, p.ExclusiveMinimum
	to.MultipleOf = p.MultipleOf
	to.MaxLength, to.MinLength, to.Pattern = p.MaxLength, p.MinLength, p.Pattern
	to.MaxItems, to.MinItems, to.UniqueItems = p.MaxItems, p.MinItems, p.UniqueItems
	to.MaxProperties, to.MinProperties, to.Required = p.MaxProperties, p.MinProperties, p.Required
}

// convertValues decodes the values in the schema: the default, which version 2 does not have, the example and the enum.
func (d *definitions) convertValues(to *spec.Schema, p *apiextensionsv1.JSONSchemaProps) (err error) {
	if d.v3 {
		if to.Default, err = valueOf(p.Default); err != nil {
			return err
		}
	}
	if to.Example, err = valueOf(p.Example); err != nil {
		return err
	}
	for i := range p.Enum {
		value, err := valueOf(&p.Enum[i])
		if err != nil {
			return err
		}
		to.Enum = append(to.Enum, value)
	}
	return nil
}

func valueOf(j *apiextensionsv1.JSON) (value any, err error) {
	if j == nil || len(j.Raw) == 0 {
		return nil, nil
	}
	if err = json.UnmarshalCaseSensitivePreserveInts(j.Raw, &value); err != nil {
		return nil, fmt.Errorf("openapi: a value in a schema: %w", err)
	}
	return value, nil
}

// convertFields converts what is below: properties, additionalProperties and items.
func (d *definitions) convertFields(to *spec.Schema, p *apiextensionsv1.JSONSchemaProps) error {
	if len(p.Properties) > 0 {
		to.Properties = make(map[string]spec.Schema, len(p.Properties))
	}
	for name, prop := range p.Properties {
		var field spec.Schema
		if err := d.convert(&field, &prop); err != nil {
			return err
		}
		to.Properties[name] = field
	}
	if a := p.AdditionalProperties; a != nil {
		to.AdditionalProperties = &spec.SchemaOrBool{Allows: a.Allows || a.Schema != nil}
		if a.Schema != nil {
			to.AdditionalProperties.Schema = &spec.Schema{}
			if err := d.convert(to.AdditionalProperties.Schema, a.Schema); err != nil {
				return err
			}
		}
	}
	if p.Items != nil && p.Items.Schema != nil {
		to.Items = &spec.SchemaOrArray{Schema: &spec.Schema{}}
		return d.convert(to.Items.Schema, p.Items.Schema)
	}
	return nil
}

// markSchema adds Kubernetes' extensions.
func markSchema(to *spec.Schema, p *apiextensionsv1.JSONSchemaProps) {
	if preserves(p) {
		to.AddExtension("x-kubernetes-preserve-unknown-fields", true)
	}
	if p.XEmbeddedResource {
		to.AddExtension("x-kubernetes-embedded-resource", true)
	}
	if p.XIntOrString {
		to.AddExtension("x-kubernetes-int-or-string", true)
	}
	if len(p.XListMapKeys) > 0 {
		to.AddExtension("x-kubernetes-list-map-keys", p.XListMapKeys)
	}
	if p.XListType != nil {
		to.AddExtension("x-kubernetes-list-type", *p.XListType)
	}
	if p.XMapType != nil {
		to.AddExtension("x-kubernetes-map-type", *p.XMapType)
	}
	if len(p.XValidations) > 0 {
		to.AddExtension("x-kubernetes-validations", p.XValidations)
	}
}

func preserves(p *apiextensionsv1.JSONSchemaProps) bool {
	return p.XPreserveUnknownFields != nil && *p.XPreserveUnknownFields
}

// intOrString are the alternatives of a value with x-kubernetes-int-or-string.
var intOrString = []apiextensionsv1.JSONSchemaProps{{Type: "integer"}, {Type: "string"}}

// convertJunctors converts allOf, anyOf, oneOf and not. A value that is an integer or a string gets these alternatives
// if the definition does not have them.
func (d *definitions) convertJunctors(to *spec.Schema, p *apiextensionsv1.JSONSchemaProps) error {
	allOf, anyOf := p.AllOf, p.AnyOf
	switch {
	case !p.XIntOrString || isIntOrString(anyOf) || len(allOf) > 0 && isIntOrString(allOf[0].AnyOf):
	case len(anyOf) == 0:
		anyOf = intOrString
	default:
		allOf = append([]apiextensionsv1.JSONSchemaProps{{AnyOf: intOrString}}, allOf...)
	}
	for _, j := range []struct {
		to   *[]spec.Schema
		from []apiextensionsv1.JSONSchemaProps
	}{{&to.AllOf, allOf}, {&to.AnyOf, anyOf}, {&to.OneOf, p.OneOf}} {
		if len(j.from) == 0 {
			continue
		}
		*j.to = make([]spec.Schema, len(j.from))
		for i := range j.from {
			if err := d.convert(&(*j.to)[i], &j.from[i]); err != nil {
				return err
			}
		}
	}
	if p.Not == nil {
		return nil
	}
	to.Not = &spec.Schema{}
	return d.convert(to.Not, p.Not)
}

func isIntOrString(anyOf []apiextensionsv1.JSONSchemaProps) bool {
	return len(anyOf) == 2 && reflect.DeepEqual(anyOf, intOrString)
}

// simplify leaves out what clients of version 2 can't read. A value that may be null has no type, nor has an object
// with unknown fields or a list of them; a field that may be null is not required.
func simplify(to *spec.Schema, p *apiextensionsv1.JSONSchemaProps) {
	to.Nullable = false
	if p.Nullable || preserves(p) {
		to.Items, to.Properties = nil, nil
	}
	if p.Nullable || p.Type == "array" && to.Items == nil || p.Type == "object" && preserves(p) {
		to.Type = nil
	}
	to.Required = slices.DeleteFunc(to.Required, func(name string) bool {
		_, kept := to.Properties[name]
		return kept && p.Properties[name].Nullable
	})
	if a := p.AdditionalProperties; a != nil && a.Schema != nil && a.Schema.Nullable {
		to.Required = nil
	}
}

// embed adds the fields that every embedded object has.
func (d *definitions) embed(s *spec.Schema) {
	const conventions = "https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md"
	for name, description := range map[string]string{
		"apiVersion": "apiVersion defines the versioned schema of this representation of an object. More info: " +
			conventions + "#resources",
		"kind": "kind is a string value representing the type of this object. In CamelCase. More info: " +
			conventions + "#types-kinds",
	} {
		p := primitive("string", "")
		p.Description = description
		s.SetProperty(name, p)
	}
	meta := d.ref(d.add(reflect.TypeFor[metav1.ObjectMeta]())).WithDescription(objectMetaDescription)
	s.SetProperty("metadata", *d.wrapRef(meta))
	for _, name := range []string{"kind", "apiVersion"} {
		if !slices.Contains(s.Required, name) {
			s.Required = append(s.Required, name)
		}
	}
}
