package api

import rbacv1 "k8s.io/api/rbac/v1"

// Grant is what an object grants to users. A user who writes it needs the same rights, or a right to grant more.
type Grant struct {
	// Rules are those of a role. Aggregated reports that the rules are put together from other roles', or have been
	// so far.
	Rules      []rbacv1.PolicyRule
	Aggregated bool
	// Role is the role that is bound, of a binding: it stands for Rules.
	Role *rbacv1.RoleRef
}

// Granting passes f a nil old if the object is new.
func Granting[T Object](f func(obj, old T) Grant) func(obj, old Object) Grant {
	return func(obj, old Object) Grant {
		was, _ := old.(T)
		return f(obj.(T), was)
	}
}
