// Package node is the group node.k8s.io/v1: runtime classes. Nodes belong to the core group.
package node

import (
	"github.com/coxswain-dev/coxswain/api"
)

// Kinds returns the kinds of node.k8s.io, in the order of discovery. Each call makes new registrations.
func Kinds() []*api.Resource {
	return []*api.Resource{runtimeClasses()}
}
