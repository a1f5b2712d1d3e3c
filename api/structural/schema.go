// Package structural is the schema of a custom resource: what a CustomResourceDefinition says about the fields
// of its objects (https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions).
//
// New compiles a version's openAPIV3Schema. The Schema then does what kube-apiserver does to an object, each in
// one walk: Prune drops the fields that the schema does not know (prune.go), Default sets those that the client
// left out (default.go), Coerce and ValidateEmbedded treat the objects that an object contains (embedded.go),
// Validate and ValidateUpdate check values (validate.go, junctors.go, values.go), and ValidateLists checks that
// sets and maps in the form of lists have no duplicates (lists.go). An update is not refused for what it does
// not change (ratchet.go, KEP-4008).
//
// ValidateRules evaluates the rules in CEL (x-kubernetes-validations). They are compiled when they are first needed
// (rule.go), for values of the schema's types (ruletype.go, rulevalue.go, rulelist.go), and evaluated within a
// budget (ruleeval.go). The validation of definitions asks place by place what new rules may cost (rulesite.go,
// ruleestimate.go), and whether the defaults are valid (defaultcheck.go).
//
// Errors are in the words of kube-apiserver, which for values are those of kube-openapi's validator;
// validate_test.go compares the two on random schemas and objects. A walk of a valid object allocates next to
// nothing, and the errors of an invalid one are limited.
//
// The package knows neither storage nor servers. Objects are JSON in Go's types: map[string]any, []any, string,
// int64, float64, bool and nil.
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

// Schema is the compiled schema of a value. It is immutable, and so safe for concurrent use. A nil Schema
// is one that knows no fields and checks nothing.
type Schema struct {
	types types
	// written is the type as it is written, with its name. That of an int-or-string can be any, or none.
	written     types
	writtenName string
	nullable    bool
	// preserve keeps fields that are not in properties; embedded marks an object with apiVersion, kind and
	// metadata of its own.
	preserve, embedded bool

	properties map[string]*Schema
	names      []string // of the properties, sorted: errors come in the same order each time
	defaulted  []string // the properties that have a default
	// open reports whether there may be fields besides properties; their values follow additional, which is
	// nil where additionalProperties is a boolean.
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
	rules       *rules  // of the whole schema, at its root; nil if there are none
	typed       *Schema // withTypeMeta, of an embedded object whose schema has rules

	below features
}

// features are what a walk looks for. It does not descend where below says that there is nothing.
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

// checks are what a value must be besides its type; a schema without any has none.
type checks struct {
	format               string // "" if the format is not one of those that are checked
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

// maxDepth limits how deep schemas are nested. kube-apiserver has no limit but that of its stack; definitions
// that people write stay below 40.
const maxDepth = 500

// New compiles a schema. It returns an error if the schema is not structural in a way that Schema can't stand
// for, which the validation of definitions does not let in.
func New(props *apiextensionsv1.JSONSchemaProps) (*Schema, error) {
	s, err := compile(props, 0)
	// Rules that stand in a branch of allOf alone are not evaluated, as in kube-apiserver.
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

// compileFields compiles what is below: properties, additionalProperties and items.
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
		to   *[]*Schema
		from []apiextensionsv1.JSONSchemaProps
	}{{&c.allOf, p.AllOf}, {&c.anyOf, p.AnyOf}, {&c.oneOf, p.OneOf}} {
		for i := range j.from {
			branch, err := compile(&j.from[i], depth+1)
			if err != nil {
				return err
			}
			*j.to = append(*j.to, branch)
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

// decode reads a JSON value of a schema, in the types of this package.
func decode(value *apiextensionsv1.JSON, into *any) error {
	if value == nil || len(value.Raw) == 0 {
		return nil
	}
	return json.UnmarshalCaseSensitivePreserveInts(value.Raw, into)
}

func sortedNames[T any](fields map[string]T) []string { return slices.Sorted(maps.Keys(fields)) }

// field is the schema of an object's field, and whether the object may have the field.
func (s *Schema) field(name string) (field *Schema, known bool) {
	if field, known = s.properties[name]; known {
		return field, true
	}
	return s.additional, s.open
}

// types is a set of JSON types; the empty one stands for any.
type types uint8

const (
	object types = 1 << iota
	array
	text
	boolean
	integer
	number
	null
	unknown // a type that there is not
)

// typeNames are in the order of the constants.
var typeNames = [...]string{"object", "array", "string", "boolean", "integer", "number", "null"}

func (t types) has(one types) bool { return t&one != 0 }

// String names the types as errors do: "integer,string".
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

// typeOf is the JSON type of a value.
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
