package cel

import (
	"regexp"
	"strings"

	celgo "github.com/google/cel-go/cel"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// Shape is the type of a kind's objects: their fields, from an OpenAPI schema. It reads the schema only as deep as
// expressions do, since a schema may contain itself. It is not safe for concurrent use.
type Shape struct {
	definitions map[string]*spec.Schema
	root        *celgo.Type
	// structs has the schemas of the used types, by type name. declared has the fields of the types that were looked
	// up.
	structs  map[string]*spec.Schema
	declared map[string]fields
}

// NewShape returns the shape of the definition called root. name stands for it in the compiler's messages
// ("Deployment", and for its fields "Deployment.spec").
func NewShape(name, root string, definitions map[string]*spec.Schema) *Shape {
	s := &Shape{definitions: definitions, structs: map[string]*spec.Schema{}, declared: map[string]fields{}}
	s.root = s.typeOf(name, definitions[root])
	return s
}

// typ returns the type of a variable of this shape. It is dynamic if the shape is nil.
func (s *Shape) typ() *celgo.Type {
	if s == nil {
		return celgo.DynType
	}
	return s.root
}

// typeOf returns the type that the schema describes. It is dynamic if the schema allows any type, as for quantities,
// int-or-strings and free-form objects.
func (s *Shape) typeOf(name string, schema *spec.Schema) *celgo.Type {
	schema = s.resolved(schema)
	if schema == nil || len(schema.Type) == 0 || schema.Format == "int-or-string" ||
		says(schema, "x-kubernetes-int-or-string") || says(schema, "x-kubernetes-preserve-unknown-fields") {
		return celgo.DynType
	}
	switch schema.Type[0] {
	case "array":
		if schema.Items == nil {
			return celgo.ListType(celgo.DynType)
		}
		return celgo.ListType(s.typeOf(name+".@idx", schema.Items.Schema))
	case "object":
		if more := schema.AdditionalProperties; more != nil && more.Schema != nil {
			return celgo.MapType(celgo.StringType, s.typeOf(name+".@elem", more.Schema))
		}
		if len(schema.Properties) == 0 {
			return celgo.DynType
		}
		s.structs[name] = schema
		return celgo.ObjectType(name)
	case "string":
		switch schema.Format {
		case "byte":
			return celgo.BytesType
		case "duration":
			return celgo.DurationType
		case "date", "date-time":
			return celgo.TimestampType
		}
		return celgo.StringType
	case "boolean":
		return celgo.BoolType
	case "number":
		return celgo.DoubleType
	case "integer":
		return celgo.IntType
	}
	return celgo.DynType
}

// resolved follows a reference. One with siblings is wrapped in allOf.
func (s *Shape) resolved(schema *spec.Schema) *spec.Schema {
	for schema != nil {
		ref := schema.Ref.String()
		if ref == "" && len(schema.AllOf) == 1 {
			ref = schema.AllOf[0].Ref.String()
		}
		if ref == "" {
			return schema
		}
		schema = s.definitions[ref[strings.LastIndexByte(ref, '/')+1:]]
	}
	return nil
}

func says(schema *spec.Schema, extension string) bool {
	yes, ok := schema.Extensions.GetBool(extension)
	return yes && ok
}

// fields returns the fields of one of the shape's types, by their names in expressions.
func (s *Shape) fields(name string) (fields, bool) {
	if declared, ok := s.declared[name]; ok {
		return declared, true
	}
	schema, ok := s.structs[name]
	if !ok {
		return nil, false
	}
	declared := fields{}
	for property, field := range schema.Properties {
		escapedName, ok := Escape(property)
		if !ok {
			continue
		}
		declared[escapedName] = s.typeOf(name+"."+escapedName, &field)
		if reserved[property] {
			declared[property] = declared[escapedName]
		}
	}
	s.declared[name] = declared
	return declared, true
}

// reserved are the language's keywords. A field with such a name may be written unescaped or as __word__.
var reserved = map[string]bool{
	"true": true, "false": true, "null": true, "in": true, "as": true, "break": true, "const": true, "continue": true,
	"else": true, "for": true, "function": true, "if": true, "import": true, "let": true, "loop": true, "package": true,
	"namespace": true, "return": true, "var": true, "void": true, "while": true,
}

var (
	escapable = regexp.MustCompile(`^[a-zA-Z_./-][a-zA-Z0-9_./-]*$`)
	escaped   = regexp.MustCompile(`__[^_]+__`)
	escapes   = strings.NewReplacer("__", "__underscores__", ".", "__dot__", "-", "__dash__", "/", "__slash__")
)

// IsKeyword reports whether a property is named like one of the language's keywords. It may be written unescaped.
func IsKeyword(property string) bool { return reserved[property] }

// Escape returns the name of a property in expressions, or false if it has none.
// https://kubernetes.io/docs/reference/using-api/cel/#escaping
func Escape(property string) (string, bool) {
	if reserved[property] {
		return "__" + property + "__", true
	}
	return escapes.Replace(property), escapable.MatchString(property)
}

// Unescape returns the property with a name in expressions, or false if there is none.
func Unescape(name string) (property string, ok bool) {
	if !strings.Contains(name, "__") {
		return name, true
	}
	ok = true
	property = escaped.ReplaceAllStringFunc(name, func(sequence string) string {
		word := sequence[2 : len(sequence)-2]
		switch word {
		case "underscores":
			return "__"
		case "dot":
			return "."
		case "dash":
			return "-"
		case "slash":
			return "/"
		}
		ok = ok && reserved[word] && sequence == name
		return word
	})
	return property, ok
}
