package fieldmanager

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
)

// form determines how the parts of a value are owned.
type form int

const (
	whole     form = iota // a scalar or an atomic value
	structure             // field by field
	mapping               // entry by entry
	set                   // value by value
	keyed                 // item by item, identified by keys
	free                  // JSON without a known type: objects entry by entry, other values as a whole
)

// shape describes the ownership of values of a Go type: the type's JSON fields with the exceptions in topology.
// There is one immutable shape per type.
type shape struct {
	form   form
	fields []shapeField // of a structure, sorted by element
	elem   *shape       // of a mapping, set or keyed list
	keys   []shapeField // of a keyed list, sorted by name
	// reduced is set if the structure has further fields that are never owned.
	reduced bool
}

// shapeField is a field of a struct as encoding/json sees it.
type shapeField struct {
	element   string // in a FieldsV1 document: "f:name"
	name      string
	index     []int // for reflect, through embedded structs
	omitEmpty bool
	omitZero  bool
	isZero    bool   // the type has an IsZero method
	stands    string // the JSON that a missing key defaults to; "" for none
	shape     *shape
}

// unowned lists the fields of an object that belong to the server or identify the object. They never have an owner.
var unowned = map[string][]string{
	"": {"apiVersion", "kind"},
	"metadata": {"name", "namespace", "creationTimestamp", "selfLink", "uid", "clusterName", "generation",
		"managedFields", "resourceVersion"},
}

// shapeKey identifies the shape of a kind's objects.
type shapeKey struct {
	object reflect.Type
	// besideStatus leaves out the status, which writes to the object itself do not change.
	besideStatus bool
}

var shapes = struct {
	sync.Mutex
	objects sync.Map // of shapeKey to *shape
	types   map[shapeOf]*shape
}{types: map[shapeOf]*shape{}}

// shapeOf identifies the shape of a type. The marker of a field overrides the marker of its type.
type shapeOf struct {
	t      reflect.Type
	marker string
}

// objectShape returns the shape of a whole object of the Go type.
func objectShape(object reflect.Type, besideStatus bool) *shape {
	key := shapeKey{object, besideStatus}
	if s, ok := shapes.objects.Load(key); ok {
		return s.(*shape)
	}
	shapes.Lock()
	defer shapes.Unlock()
	root := shapeOfType(object, "").without(unowned[""])
	if besideStatus {
		root = root.without([]string{"status"})
	}
	for i := range root.fields {
		if f := &root.fields[i]; f.name == "metadata" {
			f.shape = f.shape.without(unowned["metadata"])
		}
	}
	s, _ := shapes.objects.LoadOrStore(key, root)
	return s.(*shape)
}

// without returns a copy of a structure without the named fields.
func (s *shape) without(names []string) *shape {
	c := *s
	c.reduced = true
	c.fields = slices.DeleteFunc(slices.Clone(s.fields), func(f shapeField) bool {
		return slices.Contains(names, f.name)
	})
	return &c
}

var (
	marshalerType    = reflect.TypeFor[json.Marshaler]()
	isZeroerType     = reflect.TypeFor[interface{ IsZero() bool }]()
	rawExtensionType = reflect.TypeFor[runtime.RawExtension]()
)

// shapeOfType returns the shape of a type, deriving it if necessary. shapes must be locked.
func shapeOfType(t reflect.Type, marker string) *shape {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if marker == "" && t.Kind() == reflect.Struct {
		marker = topology[modelName(t)]
	}
	key := shapeOf{t, marker}
	if s, ok := shapes.types[key]; ok {
		return s
	}
	s := &shape{}
	shapes.types[key] = s // before its parts, because types may contain themselves
	switch {
	case marker == "atomic", t.Implements(marshalerType), reflect.PointerTo(t).Implements(marshalerType):
		if t == rawExtensionType && marker == "" {
			s.form = free
		}
	case t.Kind() == reflect.Struct:
		s.form = structure
		s.fields = fieldsOf(t, modelName(t), nil)
		slices.SortFunc(s.fields, func(a, b shapeField) int { return strings.Compare(a.name, b.name) })
	case t.Kind() == reflect.Map:
		s.form = mapping
		s.elem = shapeOfType(t.Elem(), "")
	case t.Kind() == reflect.Slice && marker == "set":
		s.form = set
		s.elem = shapeOfType(t.Elem(), "")
	case t.Kind() == reflect.Slice && marker != "":
		s.form = keyed
		s.elem = shapeOfType(t.Elem(), "")
		s.keys = keysOf(t.Elem(), marker)
	}
	return s
}

// modelName returns the name of a type in Kubernetes' schemas.
func modelName(t reflect.Type) string {
	if m, ok := reflect.Zero(t).Interface().(interface{ OpenAPIModelName() string }); ok {
		return m.OpenAPIModelName()
	}
	return ""
}

// fieldsOf returns the JSON fields of a struct and its embedded structs, with their markers in topology.
func fieldsOf(t reflect.Type, model string, above []int) []shapeField {
	var fields []shapeField
	for i := range t.NumField() {
		field := t.Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		index := append(slices.Clone(above), i)
		switch {
		case name == "-", !field.IsExported() && !field.Anonymous:
			continue
		case name == "" && field.Anonymous:
			fields = append(fields, fieldsOf(field.Type, model, index)...)
			continue
		case name == "":
			name = field.Name
		}
		fields = append(fields, shapeField{
			element:   "f:" + name,
			name:      name,
			index:     index,
			omitEmpty: strings.Contains(options, "omitempty"),
			omitZero:  strings.Contains(options, "omitzero"),
			isZero:    field.Type.Implements(isZeroerType) || reflect.PointerTo(field.Type).Implements(isZeroerType),
			shape:     shapeOfType(field.Type, topology[model+"."+name]),
		})
	}
	return fields
}

// keysOf parses a marker such as "containerPort,protocol=TCP".
func keysOf(item reflect.Type, marker string) []shapeField {
	all := fieldsOf(item, modelName(item), nil)
	var keys []shapeField
	for text := range strings.SplitSeq(marker, ",") {
		name, stands, found := strings.Cut(text, "=")
		i := slices.IndexFunc(all, func(f shapeField) bool { return f.name == name })
		key := all[i]
		if found {
			key.stands = `\"` + stands + `\"`
		}
		keys = append(keys, key)
	}
	return keys
}

// in returns the field's value in a struct. It returns the zero Value if JSON omits the field or v is invalid.
func (f *shapeField) in(v reflect.Value) reflect.Value {
	if !v.IsValid() {
		return v
	}
	for _, i := range f.index {
		if v.Kind() == reflect.Pointer {
			if v.IsNil() {
				return reflect.Value{}
			}
			v = v.Elem()
		}
		v = v.Field(i)
	}
	if f.omitEmpty && isEmpty(v) || f.omitZero && f.zero(v) {
		return reflect.Value{}
	}
	return v
}

// isEmpty implements encoding/json's omitempty.
func isEmpty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Array, reflect.Map, reflect.Slice, reflect.String:
		return v.Len() == 0
	case reflect.Struct:
		return false
	default:
		return v.IsZero()
	}
}

// zero implements encoding/json's omitzero.
func (f *shapeField) zero(v reflect.Value) bool {
	if !f.isZero || v.Kind() == reflect.Pointer && v.IsNil() {
		return v.IsZero()
	}
	if z, ok := v.Interface().(interface{ IsZero() bool }); ok {
		return z.IsZero()
	}
	if !v.CanAddr() {
		copied := reflect.New(v.Type()).Elem()
		copied.Set(v)
		v = copied
	}
	return v.Addr().Interface().(interface{ IsZero() bool }).IsZero()
}
