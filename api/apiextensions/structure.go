package apiextensions

import (
	"fmt"
	"reflect"
	"regexp/syntax"
	"slices"
	"strings"

	internal "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"

	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/internal/limits"
)

// place is the position of a schema in a resource.
type place int

const (
	atRoot place = iota
	inItems
	inField
)

// structure checks that a schema is structural (https://kep.k8s.io/1693): types and extensions are outside of allOf,
// anyOf, oneOf and not, and every field in one of these also has a schema outside of them.
type structure struct {
	errs field.ErrorList
	// patterns counts the instructions of the definition's patterns.
	patterns *int64
}

// validateStructure returns the errors in kube-apiserver's order.
func validateStructure(root *node, path *field.Path, patterns *int64) field.ErrorList {
	c := structure{patterns: patterns}
	c.node(root, atRoot, path)
	c.complete(root, root, path, path)
	slices.SortStableFunc(c.errs, func(a, b *field.Error) int { return strings.Compare(a.Error(), b.Error()) })
	return c.errs
}

func (c *structure) add(err *field.Error) { c.errs = append(c.errs, err) }

// node checks a schema outside of allOf, anyOf, oneOf and not.
func (c *structure) node(s *node, where place, path *field.Path) {
	if s == nil || field.Enough(c.errs) {
		return
	}
	if s.Type == "array" && s.items == nil {
		c.add(field.Required(path.Child("items"), "must be specified"))
	}
	c.node(s.items, inItems, path.Child("items"))
	for _, p := range s.properties {
		c.node(p.node, inField, path.Child("properties").Key(p.name))
	}
	if s.AdditionalProperties != nil {
		if where == atRoot {
			c.add(field.Forbidden(path.Child("additionalProperties"), "must not be used at the root"))
		}
		c.node(s.additional, inField, path.Child("additionalProperties"))
	}
	c.intOrString(s, path)
	c.junctors(s, isIntOrString(s), len(s.allOf) > 0 && isIntOrString(s.allOf[0]), path)
	c.typed(s, where, path)
	c.embedded(s, where, path)
}

func (c *structure) intOrString(s *node, path *field.Path) {
	const detail = "must be false if x-kubernetes-int-or-string is true"
	if s.XIntOrString && s.XPreserveUnknownFields != nil {
		c.add(field.Invalid(path.Child("x-kubernetes-preserve-unknown-fields"), true, detail))
	}
	if s.XIntOrString && s.XEmbeddedResource {
		c.add(field.Invalid(path.Child("x-kubernetes-embedded-resource"), true, detail))
	}
}

// typed requires a type.
func (c *structure) typed(s *node, where place, path *field.Path) {
	const object = "must be object if x-kubernetes-embedded-resource is true"
	path = path.Child("type")
	switch {
	case s.XEmbeddedResource && s.Type == "":
		c.add(field.Required(path, object))
	case s.XEmbeddedResource && s.Type != "object":
		c.add(field.Invalid(path, s.Type, object))
	case s.Type == "" && !s.XIntOrString && s.XPreserveUnknownFields == nil:
		c.add(field.Required(path, [...]string{
			atRoot:  "must not be empty at the root",
			inItems: "must not be empty for specified array items",
			inField: "must not be empty for specified object fields"}[where]))
	}
	if where == atRoot && s.Type != "" && s.Type != "object" {
		c.add(field.Invalid(path, s.Type, "must be object at the root"))
	}
}

// embedded checks the schema of the metadata of a resource or of an embedded object.
func (c *structure) embedded(s *node, where place, path *field.Path) {
	properties := path.Child("properties")
	if s.XEmbeddedResource && s.AdditionalProperties != nil {
		c.add(field.Forbidden(path.Child("additionalProperties"),
			"must not be used if x-kubernetes-embedded-resource is set"))
	}
	isObject := where == atRoot || s.XEmbeddedResource
	for _, name := range []string{"kind", "apiVersion"} {
		if p := s.property(name); p != nil && isObject && p.Type != "string" {
			c.add(field.Invalid(properties.Key(name).Child("type"), p.Type, "must be string"))
		}
	}
	if meta := s.property("metadata"); meta != nil {
		if isObject && meta.Type != "object" {
			c.add(field.Invalid(properties.Key("metadata").Child("type"), meta.Type, "must be object"))
		}
		if where == atRoot && !onlyNames(meta) {
			c.add(field.Forbidden(properties.Key("metadata"), "must not specify anything other than name and "+
				"generateName, but metadata is implicitly specified"))
		}
	}
	if s.XEmbeddedResource && s.XPreserveUnknownFields == nil && len(s.properties) == 0 {
		c.add(field.Required(properties, "must not be empty if x-kubernetes-embedded-resource is true without "+
			"x-kubernetes-preserve-unknown-fields"))
	}
}

// onlyNames reports whether the schema of the metadata has only a type and the properties name and generateName.
func onlyNames(meta *node) bool {
	rest := essence(meta)
	rest.Type, rest.AdditionalProperties = "", meta.AdditionalProperties
	others := slices.ContainsFunc(meta.properties, func(p child) bool {
		return p.name != "name" && p.name != "generateName"
	})
	if !others {
		rest.Properties = nil
	}
	rest.Default = nil // ValidateDefaults checks the default
	return reflect.DeepEqual(rest, props{})
}

// essence returns a schema without the fields that its structural form does not have.
func essence(s *node) props {
	p := *s.props
	clear := func(list *[]props) {
		if len(*list) == 0 {
			*list = nil
		}
	}
	clear(&p.AllOf)
	clear(&p.AnyOf)
	clear(&p.OneOf)
	if len(p.Enum) == 0 {
		p.Enum = nil
	}
	if s.items == nil {
		p.Items = nil
	}
	if a := p.AdditionalProperties; a != nil && a.Schema == nil && !a.Allows {
		p.AdditionalProperties = nil
	}
	for _, value := range []**internal.JSON{&p.Default, &p.Example} {
		if *value != nil && **value == nil {
			*value = nil
		}
	}
	p.Ref, p.PatternProperties, p.Dependencies, p.Definitions = nil, nil, nil, nil // these are empty
	return p
}

// isIntOrString reports whether anyOf consists of exactly the two types of an int-or-string.
func isIntOrString(s *node) bool {
	return len(s.anyOf) == 2 && reflect.DeepEqual(essence(s.anyOf[0]), props{Type: "integer"}) &&
		reflect.DeepEqual(essence(s.anyOf[1]), props{Type: "string"})
}

// junctors checks the branches of a schema, and its pattern. It skips anyOf, and the anyOf of the first branch of
// allOf, if they are the alternatives of an int-or-string.
func (c *structure) junctors(s *node, skipAnyOf, skipAllOf bool, path *field.Path) {
	if !skipAnyOf {
		for i, branch := range s.anyOf {
			c.branch(branch, false, path.Child("anyOf").Index(i))
		}
	}
	for i, branch := range s.allOf {
		c.branch(branch, skipAllOf && i == 0, path.Child("allOf").Index(i))
	}
	for i, branch := range s.oneOf {
		c.branch(branch, false, path.Child("oneOf").Index(i))
	}
	c.branch(s.not, false, path.Child("not"))
	if s.Pattern != "" {
		c.pattern(s.Pattern, path.Child("pattern"))
	}
}

func (c *structure) pattern(pattern string, path *field.Path) {
	size, err := limits.CheckPattern(pattern)
	if err == nil {
		_, err = syntax.Parse(pattern, syntax.Perl)
	}
	if err != nil {
		c.add(field.Invalid(path, pattern, fmt.Sprintf("must be a valid regular expression, but isn't: %v", err)))
		return
	}
	before := *c.patterns
	if *c.patterns += size; before <= maxPatterns && *c.patterns > maxPatterns {
		c.add(field.Forbidden(path, "the patterns of the definition take too much memory"))
	}
}

// branch checks a schema in allOf, anyOf, oneOf or not.
func (c *structure) branch(s *node, skipAnyOf bool, path *field.Path) {
	if s == nil || field.Enough(c.errs) {
		return
	}
	c.junctors(s, skipAnyOf, false, path)
	c.branch(s.items, false, path.Child("items"))
	for _, p := range s.properties {
		c.branch(p.node, false, path.Child("properties").Key(p.name))
	}
	if a := s.AdditionalProperties; a != nil && (a.Schema != nil || a.Allows) {
		c.add(field.Forbidden(path.Child("additionalProperties"), "must be undefined to be structural"))
	}
	for _, f := range []struct {
		name, must string
		is         bool
	}{
		{"type", "empty", s.Type != ""},
		{"default", "undefined", s.Default != nil && *s.Default != nil},
		{"title", "empty", s.Title != ""},
		{"description", "empty", s.Description != ""},
		{"nullable", "false", s.Nullable},
		{"x-kubernetes-preserve-unknown-fields", "false", s.XPreserveUnknownFields != nil},
		{"x-kubernetes-embedded-resource", "false", s.XEmbeddedResource},
		{"x-kubernetes-int-or-string", "false", s.XIntOrString},
		{"x-kubernetes-list-map-keys", "empty", len(s.XListMapKeys) > 0},
		{"x-kubernetes-list-type", "undefined", s.XListType != nil},
		{"x-kubernetes-map-type", "undefined", s.XMapType != nil},
		{"x-kubernetes-validations", "empty", len(s.XValidations) > 0},
	} {
		if f.is {
			c.add(field.Forbidden(path.Child(f.name), "must be "+f.must+" to be structural"))
		}
	}
	if s.property("metadata") != nil {
		c.add(field.Forbidden(path.Child("properties").Key("metadata"), "must not be specified in a nested context"))
	}
}

// complete checks that s has a schema for each field and item that occurs in a branch of v.
func (c *structure) complete(v, s *node, sAt, vAt *field.Path) {
	c.completeBranch(v.not, s, sAt, vAt.Child("not"))
	for _, j := range []struct {
		name     string
		branches []*node
	}{{"allOf", v.allOf}, {"anyOf", v.anyOf}, {"oneOf", v.oneOf}} {
		for i, branch := range j.branches {
			c.completeBranch(branch, s, sAt, vAt.Child(j.name).Index(i))
		}
	}
}

func (c *structure) completeBranch(v, s *node, sAt, vAt *field.Path) {
	if v == nil || field.Enough(c.errs) {
		return
	}
	if s == nil {
		c.add(field.Required(sAt, "because it is defined in "+vAt.String()))
		return
	}
	c.complete(v, s, sAt, vAt)
	c.completeBranch(v.items, s.items, sAt.Child("items"), vAt.Child("items"))
	for _, p := range v.properties {
		c.completeBranch(p.node, s.property(p.name), sAt.Child("properties").Key(p.name),
			vAt.Child("properties").Key(p.name))
	}
}
