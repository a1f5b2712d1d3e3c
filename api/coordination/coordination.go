// Package coordination is the group coordination.k8s.io/v1: leases.
package coordination

import (
	"github.com/coxswain-dev/coxswain/api"
)

// Kinds returns the kinds of coordination.k8s.io, in the order of discovery. Each call makes new registrations.
func Kinds() []*api.Resource {
	return []*api.Resource{leases()}
}
