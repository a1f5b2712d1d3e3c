package networking

import (
	"reflect"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/core"
)

// references lists the fields of the group's types that contain names of other objects.
var references = api.NewReferences(map[reflect.Type][]string{
	reflect.TypeFor[networkingv1.IngressSpec]():                     {"IngressClassName"},
	reflect.TypeFor[networkingv1.IngressServiceBackend]():           {"Name"},
	reflect.TypeFor[networkingv1.IngressTLS]():                      {"SecretName"},
	reflect.TypeFor[networkingv1.IngressClassParametersReference](): {"Name", "Namespace"},
	reflect.TypeFor[networkingv1.ParentReference]():                 {"Resource", "Name", "Namespace"},
}, core.References)
