package api

import (
	"k8s.io/apimachinery/pkg/runtime"
)

// View serves the objects of one registration in another group or version. Each object is stored
// once, and converted when it is read or written through the view. All functions of a view's
// registration take the stored type, except New, NewList and Default, which take the view's own.
// A kind that has Resource.Convert is an exception.
//
// Conversion is lossless: a value that has no field in one version is stored elsewhere, such as in an annotation.
type View struct {
	// Of is the registration that stores the objects. It is not itself a view.
	Of *Resource
	// ConvertTo makes the view's object from a stored one, ConvertFrom a stored one from the view's. They do not
	// change their argument, but the result may share parts of it. The caller sets the result's kind and apiVersion.
	// Both are nil for a kind that has Resource.Convert.
	ConvertTo   func(stored Object) (Object, error)
	ConvertFrom func(viewed Object) (Object, error)
}

// ViewOf returns a registration that serves the objects of base in another group or version. It is a copy of base with
// its own names and Go types. It has base's validation, status and columns, which the caller may change.
func ViewOf[V, S Object](base *Resource, group, version string, fresh func() V, list func() runtime.Object,
	convertTo func(S) (V, error), convertFrom func(V) (S, error)) *Resource {
	r := *base
	r.Group, r.Version = group, version
	r.New, r.NewList = func() Object { return fresh() }, list
	r.Default = nil
	r.View = &View{
		Of:          base,
		ConvertTo:   func(stored Object) (Object, error) { return convertTo(stored.(S)) },
		ConvertFrom: func(viewed Object) (Object, error) { return convertFrom(viewed.(V)) },
	}
	return &r
}
