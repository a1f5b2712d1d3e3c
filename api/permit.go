package api

import (
	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/coxswain-dev/coxswain/api/field"
)

// Caller is the author of a write, as far as a Permit may ask about it. It answers from the server's
// memory, and is valid during the one write.
type Caller interface {
	// User is the authenticated user.
	User() authenticationv1.UserInfo
	// Verb is the request's verb in the words of authorization: create, update or patch.
	Verb() string
	// May reports whether the user may use the verb on a resource of a group. An empty namespace or name
	// means all.
	May(verb, group, resource, subresource, namespace, name string) bool
	// NamespaceLabels returns the labels of a namespace, or an error if they are not known.
	NamespaceLabels(name string) (map[string]string, error)
}

// Permit returns what the caller may not write, field by field. Unlike an admission plugin it cannot be
// switched off, and its errors are returned together with those of validation. old is nil for a create.
type Permit func(by Caller, obj, old Object) field.ErrorList

// Permitted is a Permit of one Go type. f gets a nil old if the object is new.
func Permitted[T Object](f func(by Caller, obj, old T) field.ErrorList) Permit {
	return func(by Caller, obj, old Object) field.ErrorList {
		was, _ := old.(T)
		return f(by, obj.(T), was)
	}
}
