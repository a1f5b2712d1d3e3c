package apiserver

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/coxswain-dev/coxswain/api"
)

// A patch most often names one member of the object, its status or something in its metadata.
// All else is as it was: patchNamed takes it from the object that has been decoded already,
// and has only what is named patched and decoded.

// named is what a merge or strategic patch names.
type named struct {
	// members of the object; nil if the patch has to see the whole of it, for a directive
	// may be about any member.
	members []string
	// metadata are the members of metadata; nil for the whole of that.
	metadata []string
}

func namedBy(patch []byte) (n named) {
	members, err := membersOf(patch)
	if err != nil {
		return named{}
	}
	if n.members = plainNames(members); n.members == nil {
		return named{}
	}
	for _, m := range members {
		if m.name == "metadata" {
			below, _ := membersOf(m.value) // of what is no object, none
			n.metadata = plainNames(below)
		}
	}
	return n
}

// plainNames are the members' names, nil if there are none or one is a directive's.
func plainNames(members []member) (names []string) {
	for _, m := range members {
		if strings.HasPrefix(m.name, "$") {
			return nil
		}
		names = append(names, m.name)
	}
	return names
}

// patchNamed returns the object that the patch makes of old, of which doc is the document.
// It reports false where anything is out of the ordinary; what that is, the long way finds out.
func patchNamed(old api.Object, doc []byte, n named, apply patcher) (api.Object, bool) {
	if n.members == nil {
		return nil, false
	}
	part, err := n.of(doc)
	if err != nil {
		return nil, false
	}
	if part, err = apply(part); err != nil {
		return nil, false
	}
	patched := old.DeepCopyObject().(api.Object)
	if !n.clear(patched) {
		return nil, false
	}
	if !unmarshalKnown(part, patched) || patched.GetObjectKind().GroupVersionKind() != old.GetObjectKind().GroupVersionKind() {
		return nil, false
	}
	return patched, true
}

// of is the part of a document that is named.
func (n named) of(doc []byte) ([]byte, error) {
	members, err := membersOf(doc)
	if err != nil {
		return nil, err
	}
	part := []byte{'{'}
	for _, m := range members {
		if !slices.Contains(n.members, m.name) {
			continue
		}
		part = appendName(part, 1, m.name)
		if m.name != "metadata" || n.metadata == nil {
			part = append(part, m.value...)
			continue
		}
		below, err := membersOf(m.value)
		if err != nil {
			return nil, err
		}
		part = append(part, '{')
		empty := len(part)
		for _, m := range below {
			if slices.Contains(n.metadata, m.name) {
				part = append(appendName(part, empty, m.name), m.value...)
			}
		}
		part = append(part, '}')
	}
	return append(part, '}'), nil
}

// clear empties what is named in an object. It reports false if that has no such fields.
func (n named) clear(obj api.Object) bool {
	for _, name := range n.members {
		if meta, ok := objectMeta(obj); ok && name == "metadata" && n.metadata != nil {
			if !clearFields(reflect.ValueOf(meta), n.metadata) {
				return false
			}
		} else if !clearFields(reflect.ValueOf(obj), []string{name}) {
			return false
		}
	}
	return true
}

func clearFields(pointer reflect.Value, names []string) bool {
	fields := jsonFields(pointer.Type())
	for _, name := range names {
		index, ok := fields[name]
		if !ok {
			return false
		}
		pointer.Elem().FieldByIndex(index).SetZero()
	}
	return true
}

var unmarshalerType = reflect.TypeFor[json.Unmarshaler]()

// knownFields has, by type, what jsonFields has found out.
var knownFields sync.Map // of reflect.Type to map[string][]int

// jsonFields are the places of a JSON object's members in the Go type that a pointer is to;
// none if that reads its JSON in a way of its own.
func jsonFields(object reflect.Type) map[string][]int {
	if known, ok := knownFields.Load(object); ok {
		return known.(map[string][]int)
	}
	var fields map[string][]int
	if object.Kind() == reflect.Pointer && object.Elem().Kind() == reflect.Struct && !object.Implements(unmarshalerType) {
		fields = map[string][]int{}
		for _, f := range placesOf(object.Elem(), nil) {
			fields[f.name] = f.index
		}
	}
	knownFields.Store(object, fields)
	return fields
}

func placesOf(t reflect.Type, above []int) (fields []shapeField) {
	for i := range t.NumField() {
		field, index := t.Field(i), append(slices.Clone(above), i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case name != "" && name != "-":
			fields = append(fields, shapeField{name: name, index: index})
		case name == "" && field.Anonymous && field.Type.Kind() == reflect.Struct:
			fields = append(fields, placesOf(field.Type, index)...)
		}
	}
	return fields
}
