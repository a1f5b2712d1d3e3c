package api

import rbacv1 "k8s.io/api/rbac/v1"

// Grant is the set of rights that an object grants to users. To write the object, a user needs the same rights, or
// permission to escalate or bind.
type Grant struct {
	// Rules are the rules of a role. Aggregated reports that they are, or were until now, aggregated from other roles.
	Rules      []rbacv1.PolicyRule
	Aggregated bool
	// Role is the role that a binding refers to. Rules is then empty.
	Role *rbacv1.RoleRef
}

// Granting adapts f, which gets a nil old for a new object.
func Granting[T Object](f func(obj, old T) Grant) func(obj, old Object) Grant {
	return func(obj, old Object) Grant {
		was, _ := old.(T)
		return f(obj.(T), was)
	}
}
