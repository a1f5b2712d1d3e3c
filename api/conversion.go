package api

import (
	"k8s.io/apimachinery/pkg/runtime"
)

// Conversion converts between the stored version of a kind and another version in which it is served. Each object is
// stored once, and converted when it is read or written in the other version. All functions of such a version's
// registration take the stored type, except New, NewList and Default, which take the version's own. A kind that has
// Resource.Convert is an exception.
//
// Conversion is lossless: a value that has no field in one version is stored elsewhere, such as in an annotation.
type Conversion struct {
	// Stored is the registration that stores the objects. It has no Conversion itself.
	Stored *Resource
	// ConvertTo converts a stored object to the served version, ConvertFrom one of the served version to the stored
	// one. They do not change their argument, but the result may share parts of it. The caller sets the result's kind
	// and apiVersion. Both are nil for a kind that has Resource.Convert.
	ConvertTo   func(stored Object) (Object, error)
	ConvertFrom func(served Object) (Object, error)
}

// ServedVersionOf returns a registration that serves the objects of base in another group or version. It is a copy of
// base with its own names and Go types. It has base's validation, status and columns, which the caller may change.
func ServedVersionOf[V, S Object](base *Resource, group, version string, fresh func() V, list func() runtime.Object,
	convertTo func(S) (V, error), convertFrom func(V) (S, error)) *Resource {
	r := *base
	r.Group, r.Version = group, version
	r.New, r.NewList = func() Object { return fresh() }, list
	r.Default = nil
	r.Conversion = &Conversion{
		Stored:      base,
		ConvertTo:   func(stored Object) (Object, error) { return convertTo(stored.(S)) },
		ConvertFrom: func(served Object) (Object, error) { return convertFrom(served.(V)) },
	}
	return &r
}
