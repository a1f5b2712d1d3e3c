// Package discovery has the kind of the group discovery.k8s.io/v1, EndpointSlice. The documents that list all kinds are
// made in api/discoverydocs.
package discovery

import (
	"github.com/coxswain-dev/coxswain/api"
)

// Kinds returns the kinds of discovery.k8s.io, in the order of discovery. Each call makes new registrations.
func Kinds() []*api.Resource {
	return references.In(endpointSlices())
}
