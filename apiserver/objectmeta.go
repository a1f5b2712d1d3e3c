package apiserver

import (
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/coxswain-dev/coxswain/api"
)

// place checks that an object's namespace and name match the request's path, and sets them. It drops the namespace of
// an object of a cluster-scoped kind.
func place(r *request, obj api.Object) error {
	if err := placeInNamespace(r, obj); err != nil {
		return err
	}
	if r.name == "" {
		return nil
	}
	if name := obj.GetName(); name != "" && name != r.name {
		return apierrors.NewBadRequest(fmt.Sprintf(
			"the name of the object (%s) does not match the name on the URL (%s)", name, r.name))
	}
	obj.SetName(r.name)
	return nil
}

// placeInNamespace checks and sets the namespace only.
func placeInNamespace(r *request, obj api.Object) error {
	if ns := obj.GetNamespace(); ns != "" && r.namespace != "" && ns != r.namespace {
		return apierrors.NewBadRequest(fmt.Sprintf(
			"the namespace of the provided object does not match the namespace sent on the request (%s does not "+
				"match %s)", ns, r.namespace))
	}
	obj.SetNamespace(r.namespace)
	return nil
}
