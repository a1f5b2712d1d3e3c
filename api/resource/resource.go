// Package resource is the group resource.k8s.io/v1, dynamic resource allocation (KEP-4381): devices that
// drivers publish, and claims for them.
package resource

import (
	"time"

	"github.com/coxswain-dev/coxswain/api"
)

// Kinds returns the kinds of resource.k8s.io, in the order of discovery. Each call makes new registrations.
func Kinds(now func() time.Time) []*api.Resource {
	return references.In(
		deviceClasses(),
		deviceTaintRules(now),
		resourceClaims(),
		resourceClaimTemplates(),
		resourceSlices(now),
	)
}
