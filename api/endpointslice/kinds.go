// Package endpointslice is the group discovery.k8s.io/v1, named after its only kind, since api/discovery has the
// documents that list the kinds.
package endpointslice

import (
	"github.com/coxswain-dev/coxswain/api"
)

// Kinds returns the kinds of discovery.k8s.io, in the order of discovery. Each call makes new registrations.
func Kinds() []*api.Resource {
	return references.In(endpointSlices())
}
