// Package rbac is the group rbac.authorization.k8s.io/v1: roles and their bindings. apiserver/authz
// evaluates them.
package rbac

import (
	"github.com/coxswain-dev/coxswain/api"
)

// Kinds returns the kinds of rbac.authorization.k8s.io, in the order of discovery. Each call makes new registrations.
func Kinds() []*api.Resource {
	return references.In(clusterRoleBindings(), clusterRoles(), roleBindings(), roles())
}
