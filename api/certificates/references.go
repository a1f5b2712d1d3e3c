package certificates

import (
	"reflect"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/coxswain-dev/coxswain/api"
)

// references lists the fields of the group's types that contain names of other objects.
var references = api.NewReferences(map[reflect.Type][]string{
	reflect.TypeFor[certificatesv1.PodCertificateRequestSpec](): {"PodName", "NodeName", "ServiceAccountName"},
})
