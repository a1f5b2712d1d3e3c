package cel

import (
	"regexp"
	"strings"

	celgo "github.com/google/cel-go/cel"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// Shape is the type of a kind's objects: their fields, by an OpenAPI schema. It reads the schema only as
// deep as expressions do, since a schema may contain itself. It is not safe for concurrent use.
type Shape struct {
	definitions map[string]*spec.Schema
	root        *celgo.Type
	// structs are the schemas of the types that were used, by the types' names; known are the fields of
	// those that were looked up.
	structs map[string]*spec.Schema
	known   map[string]fields
}

// NewShape is the shape of the definition called root. name stands for it in the compiler's messages
// ("Deployment", and for its fields "Deployment.spec").
func NewShape(name, root string, definitions map[string]*spec.Schema) *Shape {
	s := &Shape{definitions: definitions, structs: map[string]*spec.Schema{}, known: map[string]fields{}}
	s.root = s.typeOf(name, definitions[root])
	return s
}

// typ is the type of a variable of this shape. nil is dynamic.
func (s *Shape) typ() *celgo.Type {
	if s == nil {
		return celgo.DynType
	}
	return s.root
}

// typeOf is the type that the schema describes. Where the schema allows any type, as for quantities,
// int-or-strings and free-form objects, it is dynamic.
func (s *Shape) typeOf(name string, of *spec.Schema) *celgo.Type {
	of = s.resolved(of)
	if of == nil || len(of.Type) == 0 || of.Format == "int-or-string" ||
		says(of, "x-kubernetes-int-or-string") || says(of, "x-kubernetes-preserve-unknown-fields") {
		return celgo.DynType
	}
	switch of.Type[0] {
	case "array":
		if of.Items == nil {
			return celgo.ListType(celgo.DynType)
		}
		return celgo.ListType(s.typeOf(name+".@idx", of.Items.Schema))
	case "object":
		if more := of.AdditionalProperties; more != nil && more.Schema != nil {
			return celgo.MapType(celgo.StringType, s.typeOf(name+".@elem", more.Schema))
		}
		if len(of.Properties) == 0 {
			return celgo.DynType
		}
		s.structs[name] = of
		return celgo.ObjectType(name)
	case "string":
		switch of.Format {
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

// resolved follows a reference, which is wrapped in allOf where it has siblings.
func (s *Shape) resolved(of *spec.Schema) *spec.Schema {
	for of != nil {
		ref := of.Ref.String()
		if ref == "" && len(of.AllOf) == 1 {
			ref = of.AllOf[0].Ref.String()
		}
		if ref == "" {
			return of
		}
		of = s.definitions[ref[strings.LastIndexByte(ref, '/')+1:]]
	}
	return nil
}

func says(of *spec.Schema, extension string) bool {
	yes, ok := of.Extensions.GetBool(extension)
	return yes && ok
}

// fields are the fields of one of the shape's types, under their names in expressions.
func (s *Shape) fields(name string) (fields, bool) {
	if known, ok := s.known[name]; ok {
		return known, true
	}
	of, ok := s.structs[name]
	if !ok {
		return nil, false
	}
	known := fields{}
	for property, schema := range of.Properties {
		escapedName, ok := Escape(property)
		if !ok {
			continue
		}
		known[escapedName] = s.typeOf(name+"."+escapedName, &schema)
		if reserved[property] {
			known[property] = known[escapedName]
		}
	}
	s.known[name] = known
	return known, true
}

// reserved are the language's keywords. A field with such a name may be written as it is or as __word__.
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

// IsKeyword reports whether a property has the name of one of the language's keywords. It may be written as it is.
func IsKeyword(property string) bool { return reserved[property] }

// Escape returns a property's name in expressions, if it has one.
// https://kubernetes.io/docs/reference/using-api/cel/#escaping
func Escape(property string) (string, bool) {
	if reserved[property] {
		return "__" + property + "__", true
	}
	return escapes.Replace(property), escapable.MatchString(property)
}

// Unescape returns the property of a name in expressions; ok is false if there is none.
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
