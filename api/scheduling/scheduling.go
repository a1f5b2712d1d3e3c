// Package scheduling is the group scheduling.k8s.io/v1: priority classes.
package scheduling

import (
	"github.com/coxswain-dev/coxswain/api"
)

// Kinds returns the kinds of scheduling.k8s.io, in the order of discovery. Each call makes new registrations.
func Kinds() []*api.Resource {
	return []*api.Resource{priorityClasses()}
}
