package api

import (
	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/coxswain-dev/coxswain/api/field"
)

// Caller answers a Permit's questions about the author of a write. It answers from the server's memory, and is valid
// only during that write.
type Caller interface {
	// User returns the authenticated user.
	User() authenticationv1.UserInfo
	// Verb returns the request's verb as authorization names it: create, update or patch.
	Verb() string
	// May reports whether the user may use the verb on a resource of a group. An empty namespace or name
	// means all.
	May(verb, group, resource, subresource, namespace, name string) bool
	// NamespaceLabels returns the labels of a namespace, or an error if the server cannot determine them.
	NamespaceLabels(name string) (map[string]string, error)
}

// Permit returns an error for each field that the caller may not write. Unlike an admission plugin it cannot be
// switched off, and its errors are returned together with validation errors. old is nil for a create.
type Permit func(caller Caller, obj, old Object) field.ErrorList

// Permitted adapts f, which takes one Go type, to a Permit. f gets a nil old if the object is new.
func Permitted[T Object](f func(caller Caller, obj, old T) field.ErrorList) Permit {
	return func(caller Caller, obj, old Object) field.ErrorList {
		was, _ := old.(T)
		return f(caller, obj.(T), was)
	}
}
