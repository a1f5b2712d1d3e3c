package endpointslice

import (
	"reflect"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/core"
)

// references are the fields of the group's types that name other objects.
var references = api.NewReferences(map[reflect.Type][]string{
	reflect.TypeFor[discoveryv1.Endpoint](): {"NodeName"},
}, core.References)
