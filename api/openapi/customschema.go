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

// errNotStructural is returned for a schema that kube-apiserver does not publish either.
var errNotStructural = errors.New("openapi: the schema is not structural")

var structuralTypes = []string{"", "array", "boolean", "integer", "number", "object", "string"}

// convert writes the schema of a definition in the dialect. In version 3 that is the schema as written, with a few
// additions. Version 2 has no alternatives and no null, and its clients cannot read all of its features.
func (d *definitions) convert(target *spec.Schema, p *apiextensionsv1.JSONSchemaProps) error {
	if p.ID != "" || p.Schema != "" || p.Ref != nil && *p.Ref != "" || p.PatternProperties != nil ||
		p.Dependencies != nil || p.AdditionalItems != nil || p.Definitions != nil ||
		p.Items != nil && p.Items.JSONSchemas != nil || !slices.Contains(structuralTypes, p.Type) {
		return errNotStructural
	}
	convertChecks(target, p)
	if err := d.convertValues(target, p); err != nil {
		return err
	}
	if err := d.convertFields(target, p); err != nil {
		return err
	}
	markSchema(target, p)
	if d.v3 {
		if err := d.convertJunctors(target, p); err != nil {
			return err
		}
	} else {
		simplify(target, p)
	}
	if p.XEmbeddedResource && (d.v3 || !preserves(p)) {
		d.embed(target)
	}
	return nil
}

// convertChecks copies the parts that have the same form on both sides.
func convertChecks(target *spec.Schema, p *apiextensionsv1.JSONSchemaProps) {
	if p.Type != "" {
		target.Type = spec.StringOrArray{p.Type}
	}
	target.Description, target.Title, target.Format, target.Nullable = p.Description, p.Title, p.Format, p.Nullable
	if p.ExternalDocs != nil {
		target.ExternalDocs = &spec.ExternalDocumentation{Description: p.ExternalDocs.Description,
			URL: p.ExternalDocs.URL}
	}
	target.Maximum, target.ExclusiveMaximum, target.Minimum, target.ExclusiveMinimum =
		p.Maximum, p.ExclusiveMaximum, p.Minimum, p.ExclusiveMinimum
	target.MultipleOf = p.MultipleOf
	target.MaxLength, target.MinLength, target.Pattern = p.MaxLength, p.MinLength, p.Pattern
	target.MaxItems, target.MinItems, target.UniqueItems = p.MaxItems, p.MinItems, p.UniqueItems
	target.MaxProperties, target.MinProperties, target.Required = p.MaxProperties, p.MinProperties, p.Required
}

// convertValues decodes the values in the schema: the default (version 3 only), the example and the enum.
func (d *definitions) convertValues(target *spec.Schema, p *apiextensionsv1.JSONSchemaProps) (err error) {
	if d.v3 {
		if target.Default, err = valueOf(p.Default); err != nil {
			return err
		}
	}
	if target.Example, err = valueOf(p.Example); err != nil {
		return err
	}
	for i := range p.Enum {
		value, err := valueOf(&p.Enum[i])
		if err != nil {
			return err
		}
		target.Enum = append(target.Enum, value)
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

// convertFields converts the schemas below: properties, additionalProperties and items.
func (d *definitions) convertFields(target *spec.Schema, p *apiextensionsv1.JSONSchemaProps) error {
	if len(p.Properties) > 0 {
		target.Properties = make(map[string]spec.Schema, len(p.Properties))
	}
	for name, prop := range p.Properties {
		var field spec.Schema
		if err := d.convert(&field, &prop); err != nil {
			return err
		}
		target.Properties[name] = field
	}
	if a := p.AdditionalProperties; a != nil {
		target.AdditionalProperties = &spec.SchemaOrBool{Allows: a.Allows || a.Schema != nil}
		if a.Schema != nil {
			target.AdditionalProperties.Schema = &spec.Schema{}
			if err := d.convert(target.AdditionalProperties.Schema, a.Schema); err != nil {
				return err
			}
		}
	}
	if p.Items != nil && p.Items.Schema != nil {
		target.Items = &spec.SchemaOrArray{Schema: &spec.Schema{}}
		return d.convert(target.Items.Schema, p.Items.Schema)
	}
	return nil
}

// markSchema adds Kubernetes' extensions.
func markSchema(target *spec.Schema, p *apiextensionsv1.JSONSchemaProps) {
	if preserves(p) {
		target.AddExtension("x-kubernetes-preserve-unknown-fields", true)
	}
	if p.XEmbeddedResource {
		target.AddExtension("x-kubernetes-embedded-resource", true)
	}
	if p.XIntOrString {
		target.AddExtension("x-kubernetes-int-or-string", true)
	}
	if len(p.XListMapKeys) > 0 {
		target.AddExtension("x-kubernetes-list-map-keys", p.XListMapKeys)
	}
	if p.XListType != nil {
		target.AddExtension("x-kubernetes-list-type", *p.XListType)
	}
	if p.XMapType != nil {
		target.AddExtension("x-kubernetes-map-type", *p.XMapType)
	}
	if len(p.XValidations) > 0 {
		target.AddExtension("x-kubernetes-validations", p.XValidations)
	}
}

func preserves(p *apiextensionsv1.JSONSchemaProps) bool {
	return p.XPreserveUnknownFields != nil && *p.XPreserveUnknownFields
}

// intOrString has the alternatives of a value with x-kubernetes-int-or-string.
var intOrString = []apiextensionsv1.JSONSchemaProps{{Type: "integer"}, {Type: "string"}}

// convertJunctors converts allOf, anyOf, oneOf and not. It adds the two alternatives to a value with
// x-kubernetes-int-or-string if the definition does not have them.
func (d *definitions) convertJunctors(target *spec.Schema, p *apiextensionsv1.JSONSchemaProps) error {
	allOf, anyOf := p.AllOf, p.AnyOf
	switch {
	case !p.XIntOrString || isIntOrString(anyOf) || len(allOf) > 0 && isIntOrString(allOf[0].AnyOf):
	case len(anyOf) == 0:
		anyOf = intOrString
	default:
		allOf = append([]apiextensionsv1.JSONSchemaProps{{AnyOf: intOrString}}, allOf...)
	}
	for _, j := range []struct {
		target *[]spec.Schema
		from   []apiextensionsv1.JSONSchemaProps
	}{{&target.AllOf, allOf}, {&target.AnyOf, anyOf}, {&target.OneOf, p.OneOf}} {
		if len(j.from) == 0 {
			continue
		}
		*j.target = make([]spec.Schema, len(j.from))
		for i := range j.from {
			if err := d.convert(&(*j.target)[i], &j.from[i]); err != nil {
				return err
			}
		}
	}
	if p.Not == nil {
		return nil
	}
	target.Not = &spec.Schema{}
	return d.convert(target.Not, p.Not)
}

func isIntOrString(anyOf []apiextensionsv1.JSONSchemaProps) bool {
	return len(anyOf) == 2 && reflect.DeepEqual(anyOf, intOrString)
}

// simplify removes parts that clients of version 2 cannot read. It removes the type of a nullable value, of an object
// with unknown fields, and of a list of such objects. It makes nullable fields optional.
func simplify(target *spec.Schema, p *apiextensionsv1.JSONSchemaProps) {
	target.Nullable = false
	if p.Nullable || preserves(p) {
		target.Items, target.Properties = nil, nil
	}
	if p.Nullable || p.Type == "array" && target.Items == nil || p.Type == "object" && preserves(p) {
		target.Type = nil
	}
	target.Required = slices.DeleteFunc(target.Required, func(name string) bool {
		_, present := target.Properties[name]
		return present && p.Properties[name].Nullable
	})
	if a := p.AdditionalProperties; a != nil && a.Schema != nil && a.Schema.Nullable {
		target.Required = nil
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
