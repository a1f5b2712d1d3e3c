package batch

import (
	"reflect"

	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/core"
)

// references lists the fields of the group's types that contain names of other objects.
var references = api.NewReferences(map[reflect.Type][]string{
	reflect.TypeFor[schedulingv1alpha3.WorkloadPodGroupResourceClaim](): {"ResourceClaimName",
		"ResourceClaimTemplateName"},
}, core.References)
