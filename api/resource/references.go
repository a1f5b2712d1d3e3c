package resource

import (
	"reflect"

	resourcev1 "k8s.io/api/resource/v1"

	"github.com/coxswain-dev/coxswain/api"
)

// references lists the fields of the group's types that contain names of other objects.
var references = api.NewReferences(map[reflect.Type][]string{
	reflect.TypeFor[resourcev1.Device]():                         {"NodeName"},
	reflect.TypeFor[resourcev1.ResourceSliceSpec]():              {"NodeName"},
	reflect.TypeFor[resourcev1.ExactDeviceRequest]():             {"DeviceClassName"},
	reflect.TypeFor[resourcev1.DeviceSubRequest]():               {"DeviceClassName"},
	reflect.TypeFor[resourcev1.ResourceClaimConsumerReference](): {"Resource", "Name"},
})
