package flowcontrol

import (
	"reflect"

	flowv1 "k8s.io/api/flowcontrol/v1"

	"github.com/coxswain-dev/coxswain/api"
)

// references lists the fields of the group's types that contain names of other objects.
var references = api.NewReferences(map[reflect.Type][]string{
	reflect.TypeFor[flowv1.PriorityLevelConfigurationReference](): {"Name"},
	reflect.TypeFor[flowv1.ServiceAccountSubject]():               {"Name", "Namespace"},
})
