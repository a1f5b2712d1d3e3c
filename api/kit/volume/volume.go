// Package volume checks the sources of volumes, such as a path of the node or an iSCSI target. Pods and persistent
// volumes have the same kinds of sources in two different structs, each with one field for each kind: both have a table
// of Types (Source makes a row) and set ExactlyOne of them. sources.go has the checks that both use.
//
// CSI drivers have replaced most of these kinds, but their fields are still checked. Errors equal Kubernetes'.
package volume

import (
	"github.com/coxswain-dev/coxswain/api/field"
)

// Type is a kind of source. V is the struct that has a field for each. second is the name in the error about a second
// source, name the one in the errors of the check. Both may differ from the field's name.
type Type[V any] struct {
	second, name string
	set          func(v *V) bool
	check        func(v *V, path *field.Path) field.ErrorList
}

// Source returns a row of the table of volume types, for a field of the volume.
func Source[V, S any](name string, get func(v *V) *S,
	check func(s *S, path *field.Path) field.ErrorList) Type[V] {
	return Type[V]{
		second: name, name: name,
		set:   func(v *V) bool { return get(v) != nil },
		check: func(v *V, path *field.Path) field.ErrorList { return check(get(v), path) },
	}
}

// As sets the names in Kubernetes' errors.
func (t Type[V]) As(second, name string) Type[V] {
	t.second, t.name = second, name
	return t
}

// ExactlyOne requires exactly one volume type, and checks it.
func ExactlyOne[V any](types []Type[V], v *V, path *field.Path) (errs field.ErrorList) {
	found := 0
	for i := range types {
		t := &types[i]
		if !t.set(v) {
			continue
		}
		if found++; found > 1 {
			errs = append(errs, field.Forbidden(path.Child(t.second), "may not specify more than 1 volume type"))
			continue
		}
		errs = append(errs, field.Checked(t.check, v, path.Child(t.name))...)
	}
	if found == 0 {
		errs = append(errs, field.Required(path, "must specify a volume type"))
	}
	return errs
}
