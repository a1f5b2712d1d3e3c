package controlplane

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/storage"
)

// kind finds a registration, nil where the kind is not served.
func (c *ControlPlane) kind(gvk schema.GroupVersionKind) *api.Resource {
	return c.Registry.Snapshot().Kind(gvk)
}

// put is the write, if one is needed, by which an object of the server's own becomes what change makes of it; fresh is
// the object that change begins with where there is none.
func (c *ControlPlane) put(ctx context.Context, res *api.Resource, fresh api.Object, change func(api.Object)) (
	[]storage.Write, error) {
	o, err := c.Objects.Collection(res).Get(ctx, fresh.GetNamespace(), fresh.GetName(), storage.At{})
	if errors.Is(err, storage.ErrNotFound) {
		change(fresh)
		w, err := c.Objects.Create(res, fresh)
		return []storage.Write{w}, err
	}
	if err != nil {
		return nil, err
	}
	return c.Objects.Update(ctx, res, o, "", change)
}
