package admissionregistration

import (
	"reflect"

	admissionv1 "k8s.io/api/admissionregistration/v1"

	"github.com/coxswain-dev/coxswain/api"
)

// references lists the fields of the group's types that contain names of other objects.
var references = api.NewReferences(map[reflect.Type][]string{
	reflect.TypeFor[admissionv1.ServiceReference]():                     {"Name", "Namespace"},
	reflect.TypeFor[admissionv1.ParamRef]():                             {"Name", "Namespace"},
	reflect.TypeFor[admissionv1.ValidatingAdmissionPolicyBindingSpec](): {"PolicyName"},
	reflect.TypeFor[admissionv1.MutatingAdmissionPolicyBindingSpec]():   {"PolicyName"},
})
