package fieldmanager

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/coxswain-dev/coxswain/api/structural"
)

// layout describes how the JSON of a custom resource is owned: what shape is for a Go type. It has up to three parts,
// for values of three kinds; where the schema does not name a type, a value may be of any of them. A layout is made
// once from the schema of a version and is immutable.
//
// kube-apiserver gets the same by way of an OpenAPI model (apiextensions-apiserver's controller/openapi/builder) and a
// schema of structured-merge-diff (kube-openapi's schemaconv); layout_test.go takes that way too and compares.
type layout struct {
	scalar scalar
	list   *listLayout
	object *objectLayout
}

// scalar is which scalars a value may be.
type scalar int

const (
	noScalar scalar = iota
	numeric
	text
	boolean
	anyScalar
)

// listLayout is how a list is owned: whole, as a set or keyed.
type listLayout struct {
	form  form
	items *layout
	keys  []layoutKey // of a keyed list, sorted by name
}

// layoutKey is a field that identifies an item.
type layoutKey struct {
	name   string
	begin  string // the key in a path element: \"name\":
	stands string // the JSON of the default, as it stands in a path element; "" if there is none
}

// objectLayout is how an object is owned: whole, or field by field.
type objectLayout struct {
	form   form // whole or structure
	fields map[string]layoutField
	others *layout // of the fields that fields lacks; nil if there are none
	// deduced reports that nothing is known of the fields: a change of the schema to atomic is not followed.
	deduced bool
}

type layoutField struct {
	element string // in a FieldsV1 document: "f:name"
	layout  *layout
}

// untyped is the layout of the elements of a list of no schema: everything is owned as a whole. deduced is that of a
// value of no schema: objects are owned field by field, all else as a whole.
var untyped, deduced = &layout{scalar: anyScalar}, &layout{scalar: anyScalar}

func init() { // they contain themselves
	untyped.list = &listLayout{form: whole, items: untyped}
	untyped.object = &objectLayout{form: whole, others: untyped}
	deduced.list = &listLayout{form: whole, items: untyped}
	deduced.object = &objectLayout{form: structure, others: deduced, deduced: true}
}

// rootLayout is the layout of a custom resource, without its apiVersion and kind. Objects of a version that has no
// schema are deduced, their metadata included.
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

// layoutOf makes the layout of a schema. preserve is true below a schema that preserves unknown fields.
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

// quote returns a string's JSON. Unlike encoding/json, it leaves <, > and & as they are: the library does so in the
// names of keys, but not in their values.
func quote(s string) string {
	var doc strings.Builder
	to := json.NewEncoder(&doc)
	to.SetEscapeHTML(false)
	if to.Encode(s) != nil { // which a string does not make fail
		return `""`
	}
	return strings.TrimSuffix(doc.String(), "\n")
}

// fits reports whether the value has the types of the layout, and its lists items that can be told apart. Kubernetes'
// library refuses other values, so that changes of an object that has one are not tracked. null fits everywhere but in
// a set or a keyed list. unique refuses items that occur twice.
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

// field is the layout of a field, nil if there may be no such field.
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

// identifies reports whether an item can be told from others: a scalar in a set, an object with a key in a keyed list.
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

// element returns the path element that identifies an item, as it stands in a FieldsV1 document.
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

// metaLayout is the layout of the metadata of an embedded object.
func metaLayout() *layout {
	sharedMeta.Do(func() { sharedMeta.layout = layoutOf(objectMeta(), false) })
	return sharedMeta.layout
}

// objectMeta is the schema of an object's metadata, as far as who owns what depends on it.
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

// metaSchema is what the topology and the Go type say of ObjectMeta.
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
