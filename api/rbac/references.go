package rbac

import (
	"reflect"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/coxswain-dev/coxswain/api"
)

// references lists the fields of the group's types that contain names of other objects.
var references = api.NewReferences(map[reflect.Type][]string{
	reflect.TypeFor[rbacv1.RoleRef](): {"Name"},
	reflect.TypeFor[rbacv1.Subject](): {"Namespace"},
})
