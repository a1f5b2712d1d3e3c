package discovery

import (
	"reflect"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/core"
)

// references lists the fields of the group's types that contain names of other objects.
var references = api.NewReferences(map[reflect.Type][]string{
	reflect.TypeFor[discoveryv1.Endpoint](): {"NodeName"},
}, core.References)
