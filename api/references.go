package api

import (
	"maps"
	"reflect"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
)

// References lists, by Go type, the fields of a group's objects that contain names of other objects or of their
// namespaces. Clients build URLs from these names. It is safe for concurrent use.
type References struct {
	fields map[reflect.Type][]string
	// byType caches the result of namesIn: *names by reflect.Type.
	byType sync.Map
}

// NewReferences returns the given fields together with those of the other groups that the group embeds types of, and
// with the owner references of every kind. The field names are the Go fields' names.
func NewReferences(fields map[reflect.Type][]string, others ...*References) *References {
	all := map[reflect.Type][]string{reflect.TypeFor[metav1.OwnerReference](): {"Name"}}
	for _, other := range others {
		maps.Copy(all, other.fields)
	}
	maps.Copy(all, fields)
	return &References{fields: all}
}

// In sets the references of each kind and returns the kinds.
func (r *References) In(kinds ...*Resource) []*Resource {
	for _, kind := range kinds {
		kind.References = r
	}
	return kinds
}

// onlyOwners has the references of kinds that register none: owner references.
var onlyOwners = NewReferences(nil)

// ValidateReferences appends an error to errs for each name of another object in obj that cannot be a segment of a URL
// path, such as "../secrets/s". No object can have such a name, and a client that builds a URL with it would request a
// different path.
//
// It skips fields that already have an error in errs, and names that also occur in old (which may be nil), so that
// stored objects can still be updated.
func (r *Resource) ValidateReferences(errs field.ErrorList, obj, old Object) field.ErrorList {
	references := r.References
	if references == nil {
		references = onlyOwners
	}
	v := reflect.ValueOf(obj)
	named := references.namesIn(v.Type())
	if named == nil || named.sound(v) {
		return errs
	}
	oldNames := map[string]bool{}
	if old != nil {
		was := reflect.ValueOf(old)
		references.namesIn(was.Type()).each(was, nil, func(_ *field.Path, name string) { oldNames[name] = true })
	}
	reported := map[string]bool{}
	for _, err := range errs {
		reported[err.Field] = true
	}
	named.each(v, nil, func(path *field.Path, name string) {
		if !oldNames[name] && !reported[path.String()] {
			errs = append(errs, validate.Segment(path, name)...)
		}
	})
	return errs
}

// names describes the positions of names of other objects in values of a Go type.
type names struct {
	kind reflect.Kind
	elem *names // of a pointer or a slice
	// fields are the fields of a struct that contain a name, at any depth.
	fields []nameField
}

type nameField struct {
	index int
	json  string // "" for an embedded struct: its fields belong to the struct around it
	names *names
}

var plainName = &names{kind: reflect.String}

// namesIn returns the positions of names in values of a type, or nil if there are none.
func (r *References) namesIn(t reflect.Type) *names {
	if n, ok := r.byType.Load(t); ok {
		return n.(*names)
	}
	n := r.findNames(t, map[reflect.Type]bool{})
	r.byType.Store(t, n)
	return n
}

// findNames walks a type. It skips a type that contains itself: no recursive type contains names of objects.
func (r *References) findNames(t reflect.Type, within map[reflect.Type]bool) *names {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice:
		if elem := r.findNames(t.Elem(), within); elem != nil {
			return &names{kind: t.Kind(), elem: elem}
		}
	case reflect.Struct:
		if within[t] {
			return nil
		}
		within[t] = true
		defer delete(within, t)
		n := &names{kind: reflect.Struct}
		for i := range t.NumField() {
			f := t.Field(i)
			found := r.listed(t, f)
			if found == nil {
				found = r.findNames(f.Type, within)
			}
			if found != nil {
				json, _, _ := strings.Cut(f.Tag.Get("json"), ",")
				n.fields = append(n.fields, nameField{i, json, found})
			}
		}
		if len(n.fields) > 0 {
			return n
		}
	}
	return nil
}

// listed returns the position of the name in a registered field, or nil if the field is not registered.
func (r *References) listed(t reflect.Type, f reflect.StructField) *names {
	for _, name := range r.fields[t] {
		switch {
		case name != f.Name:
		case f.Type.Kind() == reflect.Pointer:
			return &names{kind: reflect.Pointer, elem: plainName}
		default:
			return plainName
		}
	}
	return nil
}

// sound reports whether every name is a valid path segment. It does not allocate.
func (n *names) sound(v reflect.Value) bool {
	switch n.kind {
	case reflect.String:
		return isSegment(v.String())
	case reflect.Pointer:
		return v.IsNil() || n.elem.sound(v.Elem())
	case reflect.Slice:
		for i := range v.Len() {
			if !n.elem.sound(v.Index(i)) {
				return false
			}
		}
	case reflect.Struct:
		for i := range n.fields {
			if f := &n.fields[i]; !f.names.sound(v.Field(f.index)) {
				return false
			}
		}
	}
	return true
}

// isSegment does the check of validate.SegmentName without building messages.
func isSegment(s string) bool {
	return s != "." && s != ".." && strings.IndexByte(s, '/') < 0 && strings.IndexByte(s, '%') < 0
}

// each calls f with every name that is not a valid path segment.
func (n *names) each(v reflect.Value, path *field.Path, f func(path *field.Path, name string)) {
	switch n.kind {
	case reflect.String:
		if name := v.String(); len(validate.SegmentName(name, false)) > 0 {
			f(path, name)
		}
	case reflect.Pointer:
		if !v.IsNil() {
			n.elem.each(v.Elem(), path, f)
		}
	case reflect.Slice:
		for i := range v.Len() {
			n.elem.each(v.Index(i), path.Index(i), f)
		}
	case reflect.Struct:
		for i := range n.fields {
			below, step := path, &n.fields[i]
			if step.json != "" {
				below = path.Child(step.json)
			}
			step.names.each(v.Field(step.index), below, f)
		}
	}
}
