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

// put applies change to one of the server's own objects, and returns the write, or none if the object does not change.
// If the object does not exist, change is applied to fresh, and the write creates it.
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
