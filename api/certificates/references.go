package certificates

import (
	"reflect"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/coxswain-dev/coxswain/api"
)

// references are the fields of the group's types that name other objects.
var references = api.NewReferences(map[reflect.Type][]string{
	reflect.TypeFor[certificatesv1.PodCertificateRequestSpec](): {"PodName", "NodeName", "ServiceAccountName"},
})
