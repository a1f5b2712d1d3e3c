package api

import (
	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/coxswain-dev/coxswain/api/field"
)

// Caller is who makes a write, and what the server knows that a Permit may want to. Its answers come from the server's
// memory, and hold for the one write.
type Caller interface {
	// User is who writes.
	User() authenticationv1.UserInfo
	// Verb is what the request does, in the words of authorization: create, update or patch.
	Verb() string
	// May reports whether the user may do something to a resource of a group; namespace and name may be "", for all.
	May(verb, group, resource, subresource, namespace, name string) bool
	// NamespaceLabels are the labels of a namespace, or why they cannot be told.
	NamespaceLabels(name string) (map[string]string, error)
}

// Permit refuses what hangs on who writes, field by field. Unlike an admission plugin it cannot be switched off, and what
// it refuses is told beside the other refusals of the object. old is nil for a create.
type Permit func(by Caller, obj, old Object) field.ErrorList

// permitted is a Permit of one Go type; f gets a nil old where the object is new.
func permitted[T Object](f func(by Caller, obj, old T) field.ErrorList) Permit {
	return func(by Caller, obj, old Object) field.ErrorList {
		was, _ := old.(T)
		return f(by, obj.(T), was)
	}
}
