// Package structural compiles and applies the schema of a custom resource: the part of a CustomResourceDefinition that
// describes the fields of its objects
// (https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions).
//
// New compiles a version's openAPIV3Schema. The Schema then processes an object as kube-apiserver does, with one walk
// for each step: Prune drops the fields that the schema does not declare (prune.go), Default sets fields that the
// client left out (default.go), Coerce and ValidateEmbedded handle embedded objects (embedded.go), Validate and
// ValidateUpdate check values (validate.go, junctors.go, values.go), and ValidateLists rejects duplicates in lists
// that are sets or maps (lists.go). An update is not rejected for parts that it does not change (ratchet.go,
// KEP-4008).
//
// ValidateRules evaluates the rules in CEL (x-kubernetes-validations). They are compiled on first use (rule.go), for
// values of the schema's types (ruletype.go, rulevalue.go, rulelist.go), and evaluated within a budget (ruleeval.go).
// The validation of definitions requests the cost of new rules place by place (rulesite.go, ruleestimate.go), and
// checks the defaults (defaultcheck.go). api/apiextensions has the limits of these costs.
//
// Error messages equal kube-apiserver's, which uses kube-openapi's validator for values. validate_test.go compares with
// that validator on random schemas and objects. A walk over a valid object hardly allocates, and the errors of an
// invalid one are limited.
//
// The package depends neither on storage nor on servers. Objects are JSON in Go's types: map[string]any, []any,
// string, int64, float64, bool and nil.
package structural

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/json"

	"github.com/coxswain-dev/coxswain/internal/limits"
)

// Schema is the compiled schema of a value. It is immutable, and so safe for concurrent use. A nil Schema declares no
// fields and checks nothing.
type Schema struct {
	types types
	// written is the type as written, with its name. An int-or-string may have any type there, or none.
	written     types
	writtenName string
	nullable    bool
	// preserve keeps undeclared fields. embedded marks an object with its own apiVersion, kind and metadata.
	preserve, embedded bool

	properties map[string]*Schema
	names      []string // of the properties, sorted, so that the order of errors is stable
	defaulted  []string // the properties with a default
	// open reports whether there may be fields besides properties. Their values follow additional, which is nil if
	// additionalProperties is a boolean.
	open       bool
	closed     bool // additionalProperties: false
	additional *Schema

	items    *Schema
	listType listType
	listKeys []string
	whole    bool // x-kubernetes-map-type: atomic

	def    any // the default; nil if there is none
	format string
	checks *checks

	validations []apiextensionsv1.ValidationRule
	rules       *rules  // of the whole schema, only at its root; nil if there are none
	typed       *Schema // the result of withTypeMeta, for an embedded object with rules in its schema

	below features
}

// features are the features that a walk looks for. It does not descend into a value if below lacks the feature.
type features struct{ defaults, embedded, lists, rules bool }

func (f *features) add(s *Schema) {
	if s == nil {
		return
	}
	f.defaults = f.defaults || s.def != nil || s.below.defaults
	f.embedded = f.embedded || s.embedded || s.below.embedded
	f.rules = f.rules || len(s.validations) > 0 || s.below.rules
	f.lists = f.lists || s.listType == set || s.listType == associative || s.below.lists
}

type listType int

const (
	atomic listType = iota
	set
	associative // x-kubernetes-list-type: map
)

// checks are the constraints of a value besides its type. A schema without constraints has none.
type checks struct {
	format               string // "" if the format is not checked
	pattern              *limits.Pattern
	minLength, maxLength *int64

	numbers *numbers

	minItems, maxItems           *int64
	minProperties, maxProperties *int64

	enum     []any
	required []string

	allOf, anyOf, oneOf []*Schema
	not                 *Schema
}

// maxDepth limits the nesting of schemas. kube-apiserver is limited only by its stack. Real definitions stay below 40.
const maxDepth = 500

// New compiles a schema. It returns an error if the schema is not structural in a way that Schema cannot represent.
// The validation of definitions rejects such schemas.
func New(props *apiextensionsv1.JSONSchemaProps) (*Schema, error) {
	s, err := compile(props, 0)
	// As in kube-apiserver, rules that are only in a branch of allOf are not evaluated.
	if s != nil && (len(s.validations) > 0 || s.below.rules) {
		s.rules = &rules{}
	}
	return s, err
}

func compile(p *apiextensionsv1.JSONSchemaProps, depth int) (*Schema, error) {
	if p == nil {
		return nil, nil
	}
	if depth > maxDepth {
		return nil, fmt.Errorf("the schema is nested deeper than %d levels", maxDepth)
	}
	hasRef := p.Ref != nil && *p.Ref != ""
	if hasRef || len(p.PatternProperties) > 0 || len(p.Dependencies) > 0 || p.AdditionalItems != nil {
		return nil, errors.New("the schema is not structural")
	}
	s := &Schema{types: typesOf(p), written: namedType(p.Type), writtenName: p.Type, nullable: p.Nullable,
		embedded: p.XEmbeddedResource, format: p.Format, validations: p.XValidations,
		preserve: p.XPreserveUnknownFields != nil && *p.XPreserveUnknownFields, listKeys: p.XListMapKeys}
	s.whole = p.XMapType != nil && *p.XMapType == "atomic"
	if p.XListType != nil {
		s.listType = map[string]listType{"set": set, "map": associative}[*p.XListType]
	}
	if err := decode(p.Default, &s.def); err != nil {
		return nil, err
	}
	if err := s.compileFields(p, depth); err != nil {
		return nil, err
	}
	return s, s.compileChecks(p, depth)
}

// compileFields compiles the schemas below: properties, additionalProperties and items.
func (s *Schema) compileFields(p *apiextensionsv1.JSONSchemaProps, depth int) (err error) {
	if len(p.Properties) > 0 {
		s.properties = make(map[string]*Schema, len(p.Properties))
		s.names = sortedNames(p.Properties)
	}
	for _, name := range s.names {
		prop := p.Properties[name]
		field, err := compile(&prop, depth+1)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		s.properties[name] = field
		if field.def != nil {
			s.defaulted = append(s.defaulted, name)
		}
		s.below.add(field)
	}
	if a := p.AdditionalProperties; a != nil {
		s.open, s.closed = true, a.Schema == nil && !a.Allows
		if s.additional, err = compile(a.Schema, depth+1); err != nil {
			return fmt.Errorf("additionalProperties: %w", err)
		}
		s.below.add(s.additional)
	}
	if p.Items != nil {
		if len(p.Items.JSONSchemas) > 0 {
			return errors.New("items is a list of schemas")
		}
		if s.items, err = compile(p.Items.Schema, depth+1); err != nil {
			return fmt.Errorf("items: %w", err)
		}
		s.below.add(s.items)
	}
	return nil
}

func (s *Schema) compileChecks(p *apiextensionsv1.JSONSchemaProps, depth int) error {
	c := checks{format: supportedFormat(p, s.types), minLength: p.MinLength, maxLength: p.MaxLength,
		minItems: p.MinItems, maxItems: p.MaxItems, minProperties: p.MinProperties, maxProperties: p.MaxProperties,
		required: p.Required, numbers: newNumbers(p, s.types)}
	if p.Pattern != "" {
		pattern, err := limits.CompilePattern(p.Pattern)
		if err != nil {
			return err
		}
		c.pattern = pattern
	}
	for i := range p.Enum {
		var value any
		if err := decode(&p.Enum[i], &value); err != nil {
			return err
		}
		c.enum = append(c.enum, value)
	}
	for _, j := range []struct {
		branches *[]*Schema
		props    []apiextensionsv1.JSONSchemaProps
	}{{&c.allOf, p.AllOf}, {&c.anyOf, p.AnyOf}, {&c.oneOf, p.OneOf}} {
		for i := range j.props {
			branch, err := compile(&j.props[i], depth+1)
			if err != nil {
				return err
			}
			*j.branches = append(*j.branches, branch)
		}
	}
	var err error
	if c.not, err = compile(p.Not, depth+1); err != nil {
		return err
	}
	s.checks = &c
	if c.none() {
		s.checks = nil
	}
	return nil
}

func (c *checks) none() bool {
	return c.format == "" && c.pattern == nil && c.minLength == nil && c.maxLength == nil && c.numbers == nil &&
		c.minItems == nil && c.maxItems == nil && c.minProperties == nil && c.maxProperties == nil &&
		c.enum == nil && c.required == nil && c.allOf == nil && c.anyOf == nil && c.oneOf == nil && c.not == nil
}

// decode decodes a JSON value of a schema into the types of this package.
func decode(value *apiextensionsv1.JSON, into *any) error {
	if value == nil || len(value.Raw) == 0 {
		return nil
	}
	return json.UnmarshalCaseSensitivePreserveInts(value.Raw, into)
}

func sortedNames[T any](fields map[string]T) []string { return slices.Sorted(maps.Keys(fields)) }

// field returns the schema of an object's field, and whether the object may have the field.
func (s *Schema) field(name string) (field *Schema, ok bool) {
	if field, ok = s.properties[name]; ok {
		return field, true
	}
	return s.additional, s.open
}

// types is a set of JSON types. The empty set means any type.
type types uint8

const (
	object types = 1 << iota
	array
	text
	boolean
	integer
	number
	null
	unknown // not a JSON type
)

// typeNames are in the order of the constants.
var typeNames = [...]string{"object", "array", "string", "boolean", "integer", "number", "null"}

func (t types) has(one types) bool { return t&one != 0 }

// String returns the types in the form that errors use: "integer,string".
func (t types) String() string {
	if t == integer|text { // the order of x-kubernetes-int-or-string
		return "integer,string"
	}
	var names []string
	for i, name := range typeNames {
		if t.has(1 << i) {
			names = append(names, name)
		}
	}
	return strings.Join(names, ",")
}

func typesOf(p *apiextensionsv1.JSONSchemaProps) types {
	if p.XIntOrString {
		return integer | text
	}
	return namedType(p.Type)
}

func namedType(name string) types {
	if i := slices.Index(typeNames[:], name); i >= 0 {
		return 1 << i
	}
	return 0
}

// typeOf returns the JSON type of a value.
func typeOf(value any) types {
	switch value.(type) {
	case map[string]any:
		return object
	case []any:
		return array
	case string:
		return text
	case bool:
		return boolean
	case int64:
		return integer
	case float64:
		return number
	}
	return null
}
