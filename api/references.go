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

// References are the fields, by Go type, in which the objects of a group name other objects or their
// namespaces. Clients build URLs from these names. It is safe for concurrent use.
type References struct {
	fields map[reflect.Type][]string
	// byType caches the result of namesIn: *names by reflect.Type.
	byType sync.Map
}

// NewReferences returns the given fields together with those of other groups, whose types the group uses in its
// own, and with the owner references of every kind. The names are those of the Go fields.
func NewReferences(fields map[reflect.Type][]string, others ...*References) *References {
	all := map[reflect.Type][]string{reflect.TypeFor[metav1.OwnerReference](): {"Name"}}
	for _, other := range others {
		maps.Copy(all, other.fields)
	}
	maps.Copy(all, fields)
	return &References{fields: all}
}

// In registers the references in each of the kinds, and returns them.
func (r *References) In(kinds ...*Resource) []*Resource {
	for _, kind := range kinds {
		kind.References = r
	}
	return kinds
}

// onlyOwners are the references of kinds that register none.
var onlyOwners = NewReferences(nil)

// ValidateReferences adds to errs the names of other objects in obj that cannot be a segment of a path,
// such as "../secrets/s". No object has such a name, and a client that builds a URL with it would request
// something else.
//
// It adds neither fields that errs already has, nor names that old (which may be nil) has as well: stored
// objects can still be updated.
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
	known := map[string]bool{}
	if old != nil {
		was := reflect.ValueOf(old)
		references.namesIn(was.Type()).each(was, nil, func(_ *field.Path, name string) { known[name] = true })
	}
	told := map[string]bool{}
	for _, err := range errs {
		told[err.Field] = true
	}
	named.each(v, nil, func(path *field.Path, name string) {
		if !known[name] && !told[path.String()] {
			errs = append(errs, validate.Segment(path, name)...)
		}
	})
	return errs
}

// names describes where in values of a Go type other objects are named.
type names struct {
	kind reflect.Kind
	elem *names // of a pointer or a slice
	// fields are a struct's fields in which there is a name, at any depth.
	fields []nameField
}

type nameField struct {
	index int
	json  string // "" where the fields are those of the struct around it
	names *names
}

var plainName = &names{kind: reflect.String}

// namesIn returns nil if values of the type name no objects.
func (r *References) namesIn(t reflect.Type) *names {
	if n, ok := r.byType.Load(t); ok {
		return n.(*names)
	}
	n := r.findNames(t, map[reflect.Type]bool{})
	r.byType.Store(t, n)
	return n
}

// findNames walks a type. It skips a type that contains itself: no recursive type names objects.
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
			of := r.listed(t, f)
			if of == nil {
				of = r.findNames(f.Type, within)
			}
			if of != nil {
				json, _, _ := strings.Cut(f.Tag.Get("json"), ",")
				n.fields = append(n.fields, nameField{i, json, of})
			}
		}
		if len(n.fields) > 0 {
			return n
		}
	}
	return nil
}

// listed describes the name in a field that is a reference, or is nil.
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

// sound reports whether every name is a segment. It does not allocate.
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

// isSegment is validate.SegmentName without messages.
func isSegment(s string) bool {
	return s != "." && s != ".." && strings.IndexByte(s, '/') < 0 && strings.IndexByte(s, '%') < 0
}

// each calls f with every name that is not a segment.
func (n *names) each(v reflect.Value, at *field.Path, f func(at *field.Path, name string)) {
	switch n.kind {
	case reflect.String:
		if name := v.String(); len(validate.SegmentName(name, false)) > 0 {
			f(at, name)
		}
	case reflect.Pointer:
		if !v.IsNil() {
			n.elem.each(v.Elem(), at, f)
		}
	case reflect.Slice:
		for i := range v.Len() {
			n.elem.each(v.Index(i), at.Index(i), f)
		}
	case reflect.Struct:
		for i := range n.fields {
			below, step := at, &n.fields[i]
			if step.json != "" {
				below = at.Child(step.json)
			}
			step.names.each(v.Field(step.index), below, f)
		}
	}
}
