package encoding

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"sync"
)

var unmarshalerType = reflect.TypeFor[json.Unmarshaler]()

// knownFields caches JSONFields by type.
var knownFields sync.Map // of reflect.Type to map[string][]int

// JSONFields maps the names of JSON members to the index paths (reflect.Value.FieldByIndex) of the fields in the
// struct that the pointer type points to. It returns nil if the type decodes JSON itself.
func JSONFields(object reflect.Type) map[string][]int {
	if cached, ok := knownFields.Load(object); ok {
		return cached.(map[string][]int)
	}
	var fields map[string][]int
	if object.Kind() == reflect.Pointer && object.Elem().Kind() == reflect.Struct &&
		!object.Implements(unmarshalerType) {
		fields = map[string][]int{}
		addFields(fields, object.Elem(), nil)
	}
	knownFields.Store(object, fields)
	return fields
}

func addFields(fields map[string][]int, t reflect.Type, above []int) {
	for i := range t.NumField() {
		field, index := t.Field(i), append(slices.Clone(above), i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case name != "" && name != "-":
			fields[name] = index
		case name == "" && field.Anonymous && field.Type.Kind() == reflect.Struct:
			addFields(fields, field.Type, index)
		}
	}
}
