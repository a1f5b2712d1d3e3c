package api

import (
	"k8s.io/apimachinery/pkg/runtime"
)

// View shows the objects of one registration in another group or version. There is one
// stored object; it is converted when it is read or written through the view. What is
// stored is of Of's type, and so is what the functions of a view's registration are handed:
// all but New, NewList and Default, which are of the view's own type.
//
// Conversion loses nothing: what the version has no field for is carried in another place,
// such as an annotation.
type View struct {
	// Of is the registration that stores the objects. It is no view itself.
	Of *Resource
	// Show makes the view's object of a stored one, Read a stored one of the view's. They
	// leave their argument alone, but the result may share its parts. The result's kind and
	// apiVersion are the caller's to set.
	Show func(stored Object) (Object, error)
	Read func(shown Object) (Object, error)
}

// viewOf returns a registration that shows of's objects. It has all that of has until the
// caller changes it: names, validation, status, columns.
func viewOf[V, S Object](of *Resource, group, version string, fresh func() V, list func() runtime.Object,
	show func(S) (V, error), read func(V) (S, error)) *Resource {
	r := *of
	r.Group, r.Version = group, version
	r.New, r.NewList = func() Object { return fresh() }, list
	r.Default = nil
	r.View = &View{
		Of:   of,
		Show: func(stored Object) (Object, error) { return show(stored.(S)) },
		Read: func(shown Object) (Object, error) { return read(shown.(V)) },
	}
	return &r
}
