package apiserver

import (
	"encoding/json"
	"fmt"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/storage"
)

// A kind may be served in several versions of which one is stored (api.View). Documents are
// converted at the edge: what a client sends becomes the stored version before anything is
// decided about it, and what is stored becomes the client's version when it is sent. For
// the stored version itself nothing is done.

// shown is a stored object as the registration shows it, for what is sent to clients.
func shown(res *api.Resource, o *storage.Object) (*storage.Object, error) {
	if res.View == nil {
		return o, nil
	}
	stored, err := decode(res, o)
	if err != nil {
		return nil, err
	}
	obj, err := showObject(res, stored)
	if err != nil {
		return nil, err
	}
	obj.SetResourceVersion("")
	doc, err := json.Marshal(obj)
	if err != nil {
		return nil, fmt.Errorf("encoding %s %s: %w", res.Kind, o.Key.Name, err)
	}
	return storage.NewObject(o.Key, o.Revision, doc)
}

// showObject is shown for an object, which it leaves alone.
func showObject(res *api.Resource, stored api.Object) (api.Object, error) {
	if res.View == nil {
		return stored, nil
	}
	obj, err := res.View.Show(stored)
	if err != nil {
		return nil, fmt.Errorf("showing a %s as %s: %w", res.Kind, res.GroupVersion(), err)
	}
	obj.GetObjectKind().SetGroupVersionKind(res.GVK())
	return obj, nil
}

// asStored makes the stored version of an object that a client sent, which it defaults by
// the rules of the version that was sent.
func asStored(res *api.Resource, obj api.Object) (api.Object, error) {
	if res.View != nil && res.Default != nil {
		res.Default(obj)
	}
	return read(res, obj)
}

// read makes the stored version of an object of the registration's own.
func read(res *api.Resource, obj api.Object) (api.Object, error) {
	if res.View == nil {
		return obj, nil
	}
	stored, err := res.View.Read(obj)
	if err != nil {
		return nil, fmt.Errorf("reading a %s of %s: %w", res.Kind, res.GroupVersion(), err)
	}
	stored.GetObjectKind().SetGroupVersionKind(res.Stored().GVK())
	return stored, nil
}

// setDefaults fills in what is missing in an object of the stored version.
func setDefaults(res *api.Resource, obj api.Object) {
	if d := res.Stored().Default; d != nil {
		d(obj)
	}
}
