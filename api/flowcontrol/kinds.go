// Package flowcontrol is the group flowcontrol.apiserver.k8s.io/v1: the objects of API Priority and Fairness.
// flowcontrol/mandatory has the objects that every server needs.
package flowcontrol

import (
	"github.com/coxswain-dev/coxswain/api"
)

// Kinds returns the kinds of flowcontrol.apiserver.k8s.io, in the order of discovery. Each call makes new
// registrations.
func Kinds() []*api.Resource {
	return references.In(flowSchemas(), priorityLevels())
}
