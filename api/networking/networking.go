// Package networking is the group networking.k8s.io/v1: Ingresses, NetworkPolicies, and the addresses that are
// allocated to Services.
package networking

import (
	"github.com/coxswain-dev/coxswain/api"
)

// Kinds returns the kinds of networking.k8s.io, in the order of discovery. Each call makes new registrations.
func Kinds() []*api.Resource {
	return references.In(
		ingressClasses(),
		ingresses(),
		ipAddresses(),
		networkPolicies(),
		serviceCIDRs(),
	)
}
