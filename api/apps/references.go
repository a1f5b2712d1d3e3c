package apps

import (
	"reflect"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/core"
)

// references lists the fields of the group's types that contain names of other objects.
var references = api.NewReferences(map[reflect.Type][]string{
	reflect.TypeFor[appsv1.StatefulSetSpec](): {"ServiceName"},
}, core.References)
