package openapi

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/kube-openapi/pkg/validation/spec"
	merge "sigs.k8s.io/structured-merge-diff/v6/schema"

	"github.com/coxswain-dev/coxswain/api"
)

// dialect has the differences between the schemas of the two versions of OpenAPI.
type dialect struct {
	// refPrefix is the path of the definitions in a document.
	refPrefix string
	// v3 documents have defaults and alternatives (oneOf). A $ref in them has no siblings: a schema with siblings
	// wraps the $ref in allOf.
	v3 bool
}

var (
	dialectV2 = dialect{refPrefix: "#/definitions/"}
	dialectV3 = dialect{refPrefix: "#/components/schemas/", v3: true}
)

// definitions has the schemas of a document: the requested types and all the types that they refer to.
type definitions struct {
	dialect
	merge   *merge.Schema           // nil if all kinds are custom
	schemas map[string]*spec.Schema // nil for a schema that is already written
	written members
}

// newDefinitions returns empty definitions for the kinds of resources.
func newDefinitions(d dialect, resources []*api.Resource) (*definitions, error) {
	defs := &definitions{dialect: d, schemas: map[string]*spec.Schema{}}
	if allCustom(resources) {
		return defs, nil
	}
	var err error
	defs.merge, err = mergeSchema()
	return defs, err
}

// ref returns a reference to a definition by its name.
func (d *definitions) ref(name string) *spec.Schema { return spec.RefSchema(d.refPrefix + name) }

// add defines a struct type and all the types that it refers to, and returns its name.
func (d *definitions) add(t reflect.Type) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	name := definitionName(t)
	if _, ok := d.schemas[name]; ok {
		return name
	}
	s := &spec.Schema{}
	d.schemas[name] = s // before its fields: types may contain themselves
	docs := swaggerDoc(t)
	s.Description = docs[""]
	if s.Description == "" {
		s.Description = plainDescriptions[name]
	}
	if d.special(s, t) {
		return name
	}
	s.Type = spec.StringOrArray{"object"}
	top := topologyOf(d.merge, name)
	top.markType(s)
	d.addFields(s, name, t, docs, top)
	return name
}

// special sets the schema of a type with a JSON form that does not follow from its Go fields.
func (d *definitions) special(s *spec.Schema, t reflect.Type) bool {
	zero := reflect.New(t).Interface()
	typed, ok := zero.(interface{ OpenAPISchemaType() []string })
	if !ok {
		return false
	}
	s.Type = typed.OpenAPISchemaType()
	if f, ok := zero.(interface{ OpenAPISchemaFormat() string }); ok {
		s.Format = f.OpenAPISchemaFormat()
	}
	if alternatives, ok := zero.(interface{ OpenAPIV3OneOfTypes() []string }); ok && d.v3 {
		s.Type = nil
		for _, alternative := range alternatives.OpenAPIV3OneOfTypes() {
			s.OneOf = append(s.OneOf, spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{alternative}}})
		}
	}
	return true
}

// addFields adds a struct's fields to the definition called name, including those of embedded structs.
func (d *definitions) addFields(s *spec.Schema, name string, t reflect.Type, docs map[string]string, top topology) {
	for f := range t.Fields() {
		tag := parseTag(f)
		if tag.skip {
			continue
		}
		if tag.inline {
			inner := f.Type
			if inner.Kind() == reflect.Pointer {
				inner = inner.Elem()
			}
			d.addFields(s, name, inner, swaggerDoc(inner), top)
			continue
		}
		p := d.schemaOf(f.Type)
		p.Description = docs[tag.name]
		if d.v3 {
			p.Default = defaultOf(f.Type, tag.omitEmpty)
		}
		top.markField(&p, tag.name)
		if !d.v3 {
			p.Default = nil
		}
		markPatch(&p, f.Tag)
		s.SetProperty(tag.name, *d.wrapRef(&p))
		if required(name, tag) {
			s.Required = append(s.Required, tag.name)
		}
	}
}

// wrapRef wraps a reference that has siblings in allOf if the dialect requires it.
func (d *definitions) wrapRef(s *spec.Schema) *spec.Schema {
	if !d.v3 || s.Ref.String() == "" || s.Description == "" && s.Default == nil && len(s.Extensions) == 0 {
		return s
	}
	s.AllOf = []spec.Schema{{SchemaProps: spec.SchemaProps{Ref: s.Ref}}}
	s.Ref = spec.Ref{}
	return s
}

// schemaOf returns the schema of a value of type t: a reference if t is a struct.
func (d *definitions) schemaOf(t reflect.Type) spec.Schema {
	switch t.Kind() {
	case reflect.Pointer:
		return d.schemaOf(t.Elem())
	case reflect.Struct:
		if t == reflect.TypeFor[time.Time]() {
			return *spec.DateTimeProperty()
		}
		return *d.ref(d.add(t))
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return primitive("string", "byte")
		}
		element := d.schemaOf(t.Elem())
		return *spec.ArrayProperty(&element)
	case reflect.Map:
		element := d.schemaOf(t.Elem())
		return *spec.MapProperty(&element)
	case reflect.String:
		return primitive("string", "")
	case reflect.Bool:
		return primitive("boolean", "")
	case reflect.Int64, reflect.Uint64:
		return primitive("integer", "int64")
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Uint, reflect.Uint8, reflect.Uint16,
		reflect.Uint32:
		return primitive("integer", "int32")
	case reflect.Float64:
		return primitive("number", "double")
	case reflect.Float32:
		return primitive("number", "float")
	}
	return primitive("object", "") // an interface: anything
}

func primitive(kind, format string) spec.Schema {
	return spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{kind}, Format: format}}
}

// defaultOf returns the value of an absent field, as far as Go's zero value determines it. It is nil for pointers,
// lists, maps and other values that are null.
func defaultOf(t reflect.Type, omitEmpty bool) any {
	if reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		return nil
	}
	switch t.Kind() {
	case reflect.Struct:
		if t.NumField() == 1 && t.Field(0).Anonymous {
			return defaultOf(t.Field(0).Type, omitEmpty)
		}
		return map[string]any{}
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map, reflect.Interface:
		return nil
	}
	switch {
	case omitEmpty:
		return nil
	case t.Kind() == reflect.String:
		return ""
	case t.Kind() == reflect.Bool:
		return false
	}
	return 0
}

// fieldTag is a parsed JSON tag.
type fieldTag struct {
	name         string
	skip, inline bool
	omitEmpty    bool
}

func parseTag(f reflect.StructField) fieldTag {
	tag, tagged := f.Tag.Lookup("json")
	name, options, _ := strings.Cut(tag, ",")
	embedded := f.Anonymous && name == "" && f.Type.Kind() != reflect.Interface
	t := fieldTag{
		name:   name,
		skip:   name == "-" || !f.IsExported() && !embedded || !tagged && !embedded,
		inline: embedded,
	}
	for option := range strings.SplitSeq(options, ",") {
		t.omitEmpty = t.omitEmpty || option == "omitempty"
	}
	return t
}

// required reports whether a definition's field is required.
func required(definition string, tag fieldTag) bool {
	if tag.omitEmpty {
		return slices.Contains(requiredByComment[definition], tag.name)
	}
	return !slices.Contains(optionalByComment[definition], tag.name)
}

// markPatch records how strategic merge patch treats a field.
func markPatch(s *spec.Schema, tag reflect.StructTag) {
	if key := tag.Get("patchMergeKey"); key != "" {
		s.AddExtension("x-kubernetes-patch-merge-key", key)
	}
	if strategy := tag.Get("patchStrategy"); strategy != "" {
		s.AddExtension("x-kubernetes-patch-strategy", strategy)
	}
}

// swaggerDoc returns a type's own descriptions: of its fields by JSON name, of itself by "".
func swaggerDoc(t reflect.Type) map[string]string {
	documented, ok := reflect.Zero(t).Interface().(interface{ SwaggerDoc() map[string]string })
	if !ok {
		return nil
	}
	docs := documented.SwaggerDoc()
	// A struct without methods of its own promotes the method of an embedded field. These descriptions are then not
	// the struct's.
	for f := range t.Fields() {
		if f.Anonymous && f.Type.Kind() == reflect.Struct &&
			reflect.ValueOf(swaggerDoc(f.Type)).Pointer() == reflect.ValueOf(docs).Pointer() {
			return nil
		}
	}
	return docs
}

// plainDescriptions describes types without descriptions of their own.
var plainDescriptions = map[string]string{
	"io.k8s.apimachinery.pkg.api.resource.Quantity": "Quantity is a fixed-point number, written as a decimal " +
		"with an optional suffix: m, k, M, G, T, P, E, or Ki, Mi, Gi, Ti, Pi, Ei.",
	"io.k8s.apimachinery.pkg.apis.meta.v1.Duration": "Duration is a length of time as Go writes it, like 1h30m.",
	"io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1": "FieldsV1 is a set of fields in the JSON form of " +
		"server-side apply: f:<name>, k:<keys>, v:<value>, i:<index>.",
	"io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime":  "MicroTime is an RFC 3339 time with microseconds.",
	"io.k8s.apimachinery.pkg.apis.meta.v1.Time":       "Time is an RFC 3339 time with seconds.",
	"io.k8s.apimachinery.pkg.runtime.RawExtension":    "RawExtension is an object of any kind.",
	"io.k8s.apimachinery.pkg.util.intstr.IntOrString": "IntOrString is a number or a string.",
}
