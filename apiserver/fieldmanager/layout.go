package fieldmanager

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/coxswain-dev/coxswain/api/structural"
)

// layout describes the ownership of the JSON of a custom resource, as shape does for a Go type. It has up to three
// parts, for scalars, lists and objects. If the schema does not specify a type, the value may have any of them. A
// layout is derived once from the schema of a version and is immutable.
//
// kube-apiserver derives the same information through an OpenAPI model (apiextensions-apiserver's
// controller/openapi/builder) and a schema of structured-merge-diff (kube-openapi's schemaconv). layout_test.go
// does that too and compares the results.
type layout struct {
	scalar scalar
	list   *listLayout
	object *objectLayout
}

// scalar determines which scalars are allowed.
type scalar int

const (
	noScalar scalar = iota
	numeric
	text
	boolean
	anyScalar
)

// listLayout describes the ownership of a list: as a whole, as a set or by keys.
type listLayout struct {
	form  form
	items *layout
	keys  []layoutKey // of a keyed list, sorted by name
}

// layoutKey is a field that identifies an item.
type layoutKey struct {
	name   string
	begin  string // the key in a path element: \"name\":
	stands string // the JSON of the default in the form of a path element; "" if there is none
}

// objectLayout describes the ownership of an object: as a whole or field by field.
type objectLayout struct {
	form   form // whole or structure
	fields map[string]layoutField
	others *layout // of other fields; nil if there may be none
	// deduced is set if the fields are unknown. A change of the schema to atomic is not tracked then.
	deduced bool
}

type layoutField struct {
	element string // in a FieldsV1 document: "f:name"
	layout  *layout
}

// untyped is the layout of the elements of a list without a schema: all values are owned as a whole. deduced is the
// layout of a value without a schema: objects are owned field by field, other values as a whole.
var untyped, deduced = &layout{scalar: anyScalar}, &layout{scalar: anyScalar}

func init() { // they refer to themselves
	untyped.list = &listLayout{form: whole, items: untyped}
	untyped.object = &objectLayout{form: whole, others: untyped}
	deduced.list = &listLayout{form: whole, items: untyped}
	deduced.object = &objectLayout{form: structure, others: deduced, deduced: true}
}

// rootLayout returns the layout of a custom resource without apiVersion and kind. For a version without a schema
// the layout is deduced and includes the metadata.
func rootLayout(s *structural.Schema) *layout {
	if s.Type() != "object" {
		return deduced
	}
	root := layoutOf(s, false)
	for _, name := range unowned[""] {
		delete(root.object.fields, name)
	}
	root.object.fields["metadata"] = layoutField{"f:metadata", metaLayout()}
	root.object.deduced = false
	if _, _, stated := s.AdditionalProperties(); !stated && !s.PreservesUnknownFields() {
		root.object.others = nil
	}
	return root
}

// layoutOf derives the layout from a schema. preserve is set below a schema that preserves unknown fields.
func layoutOf(s *structural.Schema, preserve bool) *layout {
	preserve = preserve || s.PreservesUnknownFields()
	switch s.Type() {
	case "object":
		return &layout{object: objectLayoutOf(s, preserve)}
	case "array":
		return &layout{list: listLayoutOf(s, preserve)}
	case "integer", "number":
		return &layout{scalar: numeric}
	case "boolean":
		return &layout{scalar: boolean}
	case "string":
		if format := s.Format(); format != "" && format != "byte" {
			return &layout{scalar: anyScalar}
		}
		return &layout{scalar: text}
	}
	return &layout{scalar: anyScalar, list: listLayoutOf(s, preserve), object: objectLayoutOf(s, preserve)}
}

func objectLayoutOf(s *structural.Schema, preserve bool) *objectLayout {
	o := &objectLayout{form: structure, fields: map[string]layoutField{}}
	if s.AtomicMap() {
		o.form = whole
	}
	for name, field := range s.Properties() {
		o.fields[name] = layoutField{"f:" + escape(name), layoutOf(field, preserve)}
	}
	if s.EmbedsResource() {
		o.fields["apiVersion"] = layoutField{"f:apiVersion", &layout{scalar: text}}
		o.fields["kind"] = layoutField{"f:kind", &layout{scalar: text}}
		o.fields["metadata"] = layoutField{"f:metadata", metaLayout()}
	}
	schema, allowed, stated := s.AdditionalProperties()
	switch {
	case !stated && (preserve || len(o.fields) == 0), stated && schema == nil && allowed:
		o.others = deduced
	case schema != nil:
		o.others = layoutOf(schema, preserve)
	}
	o.deduced = len(o.fields) == 0 && o.others != nil && o.others.scalar == anyScalar
	return o
}

func listLayoutOf(s *structural.Schema, preserve bool) *listLayout {
	l := &listLayout{form: whole, items: untyped}
	if s.Items() != nil {
		l.items = layoutOf(s.Items(), preserve)
	}
	switch s.ListType() {
	case "set":
		l.form = set
	case "map":
		l.form = keyed
	}
	for _, name := range slices.Sorted(slices.Values(s.ListMapKeys())) {
		key := layoutKey{name: name, begin: escape(quote(name)) + ":"}
		if stands := s.Items().Property(name).DefaultValue(); stands != nil {
			key.stands = string(appendJSON(nil, stands))
		}
		l.keys = append(l.keys, key)
	}
	return l
}

// quote returns a string's JSON. Unlike encoding/json, it does not escape <, > and &. The library does the same for
// the names of keys, but not for their values.
func quote(s string) string {
	var doc strings.Builder
	encoder := json.NewEncoder(&doc)
	encoder.SetEscapeHTML(false)
	if encoder.Encode(s) != nil { // never fails for a string
		return `""`
	}
	return strings.TrimSuffix(doc.String(), "\n")
}

// fits reports whether a value has the types of the layout and all list items can be identified. Kubernetes'
// library rejects other values, so changes of such objects are not tracked. null fits everywhere except in a set or
// keyed list. If unique is set, duplicate items do not fit.
func (l *layout) fits(v any, unique bool) bool {
	switch v := v.(type) {
	case nil:
		return true
	case map[string]any:
		return l.object != nil && l.object.fits(v, unique)
	case []any:
		return l.list != nil && l.list.fits(v, unique)
	case string:
		return l.scalar == text || l.scalar == anyScalar
	case bool:
		return l.scalar == boolean || l.scalar == anyScalar
	}
	return l.scalar == numeric || l.scalar == anyScalar
}

func (o *objectLayout) fits(fields map[string]any, unique bool) bool {
	if len(o.fields) == 0 && (o.others == deduced || o.others == untyped) {
		return true
	}
	for name, value := range fields {
		field := o.field(name)
		if field == nil || !field.fits(value, unique) {
			return false
		}
	}
	return true
}

// field returns the layout of a field, or nil if the field is not allowed.
func (o *objectLayout) field(name string) *layout {
	if f, ok := o.fields[name]; ok {
		return f.layout
	}
	return o.others
}

func (l *listLayout) fits(items []any, unique bool) bool {
	if l.form == whole && l.items == untyped {
		return true
	}
	var elements []string
	for _, item := range items {
		if l.form != whole {
			if !l.identifies(item) {
				return false
			}
			if unique {
				elements = append(elements, l.element(item))
			}
		}
		if !l.items.fits(item, unique) {
			return false
		}
	}
	slices.Sort(elements)
	return len(slices.Compact(elements)) == len(elements)
}

// identifies reports whether an item can be identified: a scalar in a set, or an object with a key in a keyed list.
func (l *listLayout) identifies(item any) bool {
	fields, isObject := item.(map[string]any)
	if l.form == set {
		_, isList := item.([]any)
		return item != nil && !isObject && !isList
	}
	return isObject && slices.ContainsFunc(l.keys, func(key layoutKey) bool {
		_, found := fields[key.name]
		return found || key.stands != ""
	})
}

// element returns the path element that identifies an item, in the form used in a FieldsV1 document.
func (l *listLayout) element(item any) string {
	var buffer [128]byte
	if l.form == set {
		return string(appendJSON(append(buffer[:0], "v:"...), item))
	}
	fields, _ := item.(map[string]any)
	b := append(buffer[:0], "k:{"...)
	for i := range l.keys {
		key := &l.keys[i]
		value, found := fields[key.name]
		if !found && key.stands == "" {
			continue
		}
		if len(b) > len("k:{") {
			b = append(b, ',')
		}
		b = append(b, key.begin...)
		if found {
			b = appendJSON(b, value)
		} else {
			b = append(b, key.stands...)
		}
	}
	return string(append(b, '}'))
}

var sharedMeta struct {
	sync.Once
	layout *layout
}

// metaLayout returns the layout of the metadata of an embedded object.
func metaLayout() *layout {
	sharedMeta.Do(func() { sharedMeta.layout = layoutOf(objectMeta(), false) })
	return sharedMeta.layout
}

// objectMeta returns the schema of an object's metadata, reduced to the parts that affect ownership.
var objectMeta = sync.OnceValue(func() *structural.Schema {
	var props apiextensionsv1.JSONSchemaProps
	if err := json.Unmarshal([]byte(metaSchema), &props); err != nil {
		panic("fieldmanager: the schema of metadata: " + err.Error())
	}
	schema, err := structural.New(&props)
	if err != nil {
		panic("fieldmanager: the schema of metadata: " + err.Error())
	}
	return schema
})

// metaSchema describes ObjectMeta according to the topology and the Go type.
const metaSchema = `{"type":"object","properties":{
	"annotations":{"type":"object","additionalProperties":{"type":"string"}},
	"creationTimestamp":{"type":"string","format":"date-time"},
	"deletionGracePeriodSeconds":{"type":"integer"},
	"deletionTimestamp":{"type":"string","format":"date-time"},
	"finalizers":{"type":"array","x-kubernetes-list-type":"set","items":{"type":"string"}},
	"generateName":{"type":"string"},
	"generation":{"type":"integer"},
	"labels":{"type":"object","additionalProperties":{"type":"string"}},
	"managedFields":{"type":"array","x-kubernetes-list-type":"atomic","items":{"type":"object","properties":{
		"apiVersion":{"type":"string"},"fieldsType":{"type":"string"},"fieldsV1":{"type":"object"},
		"manager":{"type":"string"},"operation":{"type":"string"},"subresource":{"type":"string"},
		"time":{"type":"string","format":"date-time"}}}},
	"name":{"type":"string"},
	"namespace":{"type":"string"},
	"ownerReferences":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["uid"],
		"items":{"type":"object","x-kubernetes-map-type":"atomic","properties":{"apiVersion":{"type":"string"},
		"blockOwnerDeletion":{"type":"boolean"},"controller":{"type":"boolean"},"kind":{"type":"string"},
		"name":{"type":"string"},"uid":{"type":"string"}}}},
	"resourceVersion":{"type":"string"},
	"selfLink":{"type":"string"},
	"uid":{"type":"string"}}}`
