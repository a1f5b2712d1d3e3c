// Package policy is the group policy/v1: disruption budgets. Evictions are a subresource of pods
// (api/core).
package policy

import (
	"github.com/coxswain-dev/coxswain/api"
)

// Kinds returns the kinds of policy, in the order of discovery. Each call makes new registrations.
func Kinds() []*api.Resource {
	return []*api.Resource{podDisruptionBudgets()}
}
