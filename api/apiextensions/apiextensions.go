// Package apiextensions registers the kind of apiextensions.k8s.io/v1, CustomResourceDefinition, and validates
// definitions. api/structural compiles the schemas of valid ones.
//
// definition.go has the registration, default.go the fields that the server sets. validate.go checks a write in the
// same order as kube-apiserver: the spec and its names (names.go), each version (version.go) with its schema, and the
// conversion (conversion.go). A schema becomes a tree of nodes (node.go) that is walked several times, to check that
// it is structural (structure.go), that its defaults are valid (api/structural), that its fields and extensions are
// allowed (schema.go, extensions.go), and that its rules compile and are cheap enough (rules.go). An update is not
// rejected for faults that the stored definition already has (ratchet.go). warn.go has the warnings.
//
// The checks and their messages are kube-apiserver's. Like there, the versions are converted to the internal type, so
// that errors in fields that all versions share are reported at the top of the spec. limits.go has limits that
// kube-apiserver lacks: a client's definition may have megabytes, and its check must end.
package apiextensions

import (
	"reflect"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/coxswain-dev/coxswain/api"
)

// references lists the fields of the group's types that contain names of other objects.
var references = api.NewReferences(map[reflect.Type][]string{
	reflect.TypeFor[apiextensionsv1.ServiceReference](): {"Name", "Namespace"},
})

// Kinds returns the kinds of apiextensions.k8s.io. Each call makes new registrations.
func Kinds() []*api.Resource { return references.In(customResourceDefinitions()) }
