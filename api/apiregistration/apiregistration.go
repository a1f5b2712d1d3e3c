// Package apiregistration is the group apiregistration.k8s.io/v1: which server answers for a group and version of the
// API, and in which order clients see them. apiserver/aggregation acts on these objects.
package apiregistration

import (
	"reflect"

	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/coxswain-dev/coxswain/api"
)

// references are the fields of the group's types that name other objects.
var references = api.NewReferences(map[reflect.Type][]string{
	reflect.TypeFor[apiregistrationv1.ServiceReference](): {"Name", "Namespace"},
})

// Kinds returns the kinds of apiregistration.k8s.io. Each call makes new registrations.
func Kinds() []*api.Resource { return references.In(apiServices()) }
