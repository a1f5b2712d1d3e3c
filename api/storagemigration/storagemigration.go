// Package storagemigration is the group storagemigration.k8s.io/v1: requests to rewrite all objects of a
// resource.
package storagemigration

import (
	"github.com/coxswain-dev/coxswain/api"
)

// Kinds returns the kinds of storagemigration.k8s.io, in the order of discovery. Each call makes new registrations.
func Kinds() []*api.Resource {
	return []*api.Resource{storageVersionMigrations()}
}
