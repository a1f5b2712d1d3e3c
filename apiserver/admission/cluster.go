package admission

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/admission/match"
)

// ErrNotFound is the error of Cluster for an object that does not exist.
var ErrNotFound = match.ErrNotFound

// get is Cluster.Get for a Go type.
func get[T api.Object](ctx context.Context, c Cluster, resource schema.GroupResource, namespace,
	name string) (T, error) {
	return typed[T](c.Get(ctx, resource, namespace, name))
}

func typed[T api.Object](obj api.Object, err error) (T, error) {
	if err != nil {
		var none T
		return none, err
	}
	return obj.(T), nil
}

// list is Cluster.List, from memory, for a Go type.
func list[T api.Object](ctx context.Context, c Cluster, resource schema.GroupResource, namespace string) ([]T, error) {
	objects, err := c.List(ctx, resource, namespace, false)
	return assert[T](objects), err
}

func assert[T api.Object](objects []api.Object) []T {
	if len(objects) == 0 {
		return nil
	}
	all := make([]T, len(objects))
	for i := range objects {
		all[i] = objects[i].(T)
	}
	return all
}

// notFound returns the error that names the missing object, as a client's own read would.
func notFound(err error, resource schema.GroupResource, name string) error {
	if errors.Is(err, ErrNotFound) {
		return apierrors.NewNotFound(resource, name)
	}
	return err
}

// The resources that plugins read.
var (
	namespaces      = match.Namespaces
	nodes           = schema.GroupResource{Resource: "nodes"}
	pods            = schema.GroupResource{Resource: "pods"}
	limitRanges     = schema.GroupResource{Resource: "limitranges"}
	resourceQuotas  = schema.GroupResource{Resource: "resourcequotas"}
	serviceAccounts = schema.GroupResource{Resource: "serviceaccounts"}
	priorityClasses = schema.GroupResource{Group: "scheduling.k8s.io", Resource: "priorityclasses"}
	runtimeClasses  = schema.GroupResource{Group: "node.k8s.io", Resource: "runtimeclasses"}
	serviceCIDRs    = schema.GroupResource{Group: "networking.k8s.io", Resource: "servicecidrs"}
	claims          = schema.GroupResource{Resource: "persistentvolumeclaims"}
	volumes         = schema.GroupResource{Resource: "persistentvolumes"}
	csiDrivers      = schema.GroupResource{Group: "storage.k8s.io", Resource: "csidrivers"}
	storageClasses  = schema.GroupResource{Group: "storage.k8s.io", Resource: "storageclasses"}
	ingressClasses  = schema.GroupResource{Group: "networking.k8s.io", Resource: "ingressclasses"}
)
