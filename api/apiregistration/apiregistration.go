// Package apiregistration is the group apiregistration.k8s.io/v1: it maps a group and version of the API to the server
// that serves it, and orders them for clients. apiserver/aggregation acts on these objects.
package apiregistration

import (
	"reflect"

	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/coxswain-dev/coxswain/api"
)

// references lists the fields of the group's types that contain names of other objects.
var references = api.NewReferences(map[reflect.Type][]string{
	reflect.TypeFor[apiregistrationv1.ServiceReference](): {"Name", "Namespace"},
})

// Kinds returns the kinds of apiregistration.k8s.io. Each call makes new registrations.
func Kinds() []*api.Resource { return references.In(apiServices()) }
