package cel

import (
	"regexp"
	"strings"

	celgo "github.com/google/cel-go/cel"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// Shape is what the checker knows of the objects of a kind: their fields, by an OpenAPI schema. It
// looks no deeper into the schema than expressions do, so that schemas may contain themselves.
// It is not safe for concurrent use.
type Shape struct {
	definitions map[string]*spec.Schema
	root        *celgo.Type
	// structs are the schemas of the types that were met, by the types' names; known are the
	// fields of those that were asked for.
	structs map[string]*spec.Schema
	known   map[string]fields
}

// NewShape is the shape that the definition called root has. name is what the compiler's complaints
// call it ("Deployment", and of its fields "Deployment.spec").
func NewShape(name, root string, definitions map[string]*spec.Schema) *Shape {
	s := &Shape{definitions: definitions, structs: map[string]*spec.Schema{}, known: map[string]fields{}}
	s.root = s.typeOf(name, definitions[root])
	return s
}

// typ is the type of a variable of this shape, nil being any.
func (s *Shape) typ() *celgo.Type {
	if s == nil {
		return celgo.DynType
	}
	return s.root
}

// typeOf is the type of what the schema describes. Where the schema leaves open what it is, as of
// quantities, int-or-strings and free-form objects, anything may be done with it.
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

// fields are those of one of the shape's types, under the names that expressions have for them.
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
		escaped, ok := escape(property)
		if !ok {
			continue
		}
		known[escaped] = s.typeOf(name+"."+escaped, &schema)
		if reserved[property] {
			known[property] = known[escaped]
		}
	}
	s.known[name] = known
	return known, true
}

// reserved are the words of the language. As a field, each may be written as it is or as __word__.
var reserved = map[string]bool{
	"true": true, "false": true, "null": true, "in": true, "as": true, "break": true, "const": true, "continue": true,
	"else": true, "for": true, "function": true, "if": true, "import": true, "let": true, "loop": true, "package": true,
	"namespace": true, "return": true, "var": true, "void": true, "while": true,
}

var (
	escapable = regexp.MustCompile(`^[a-zA-Z_./-][a-zA-Z0-9_./-]*$`)
	escapes   = strings.NewReplacer("__", "__underscores__", ".", "__dot__", "-", "__dash__", "/", "__slash__")
)

// escape is the name by which an expression selects a property. Some have none.
// https://kubernetes.io/docs/reference/using-api/cel/#escaping
func escape(property string) (string, bool) {
	if reserved[property] {
		return "__" + property + "__", true
	}
	return escapes.Replace(property), escapable.MatchString(property)
}
