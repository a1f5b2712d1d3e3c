package autoscaling

import (
	"reflect"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"

	"github.com/coxswain-dev/coxswain/api"
)

// references lists the fields of the group's types that contain names of other objects.
var references = api.NewReferences(map[reflect.Type][]string{
	reflect.TypeFor[autoscalingv1.CrossVersionObjectReference](): {"Kind", "Name"},
	reflect.TypeFor[autoscalingv2.CrossVersionObjectReference](): {"Kind", "Name"},
	reflect.TypeFor[autoscalingv2.MetricIdentifier]():            {"Name"},
})
