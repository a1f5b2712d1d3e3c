// Package apiextensions is the group apiextensions.k8s.io/v1: the definitions of custom resources. It has the
// registration of the kind and the checks of a definition; api/structural compiles the schemas of those that pass.
//
// definition.go has the registration, default.go what the server sets. A write is checked by validate.go in the order
// of kube-apiserver: the spec and its names (names.go), each version (version.go) with its schema, and the conversion
// (conversion.go). A schema becomes a tree of nodes (node.go) that is walked several times: is it structural
// (structure.go), are its defaults valid (api/structural), are its fields and extensions allowed (schema.go,
// extensions.go), and do its rules compile and cost little enough (rules.go). An update does not fail for what the
// stored definition was allowed (ratchet.go). warn.go has the warnings.
//
// The checks are those of kube-apiserver with its words: on the internal type, to which the versions are converted, so
// that what all versions have in common is reported at the top of the spec. limits.go has what kube-apiserver does not
// limit: a definition is a document of a client's, of megabytes, and a check must end.
package apiextensions

import (
	"reflect"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/coxswain-dev/coxswain/api"
)

// references are the fields of the group's types that name other objects.
var references = api.NewReferences(map[reflect.Type][]string{
	reflect.TypeFor[apiextensionsv1.ServiceReference](): {"Name", "Namespace"},
})

// Kinds returns the kinds of apiextensions.k8s.io. Each call makes new registrations.
func Kinds() []*api.Resource { return references.In(customResourceDefinitions()) }
