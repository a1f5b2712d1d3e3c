package apiserver

import (
	"context"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/equal"
	"github.com/coxswain-dev/coxswain/apiserver/cluster"
	"github.com/coxswain-dev/coxswain/apiserver/controlplane"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/apiserver/fieldmanager"
	"github.com/coxswain-dev/coxswain/apiserver/servicealloc"
	"github.com/coxswain-dev/coxswain/apiserver/strategy"
	"github.com/coxswain-dev/coxswain/storage"
)

// ownObjects are the API objects, as the server itself reads and writes them: defaulted, and with field ownership, but
// neither admitted nor validated.
type ownObjects struct{ s *Server }

var (
	_ cluster.Objects      = ownObjects{}
	_ controlplane.Objects = ownObjects{}
	_ servicealloc.Objects = ownObjects{}
)

// Collection opens the stored objects of a kind.
func (o ownObjects) Collection(res *api.Resource) *storage.Collection { return o.s.collection(res) }

// Create is the write by which the server creates an object of its own.
func (o ownObjects) Create(res *api.Resource, obj api.Object) (storage.Write, error) {
	if res.Default != nil {
		res.Default(obj)
	}
	owners := fieldmanager.Create(res, obj, o.writer(res, ""))
	strategy.BeforeCreate(res, obj, o.s.Clock.Now())
	obj.SetManagedFields(owners)
	doc, err := encoding.Encode(res, obj)
	return storage.Write{Op: storage.Create, Key: storage.Key{Collection: res.Collection(),
		Namespace: obj.GetNamespace(), Name: obj.GetName()}, Value: doc}, err
}

// Update is the write, if one is needed, by which a stored object becomes what change makes of it.
func (o ownObjects) Update(res *api.Resource, stored *storage.Object, subresource string, change func(api.Object)) (
	[]storage.Write, error) {
	old, err := encoding.Decode(context.Background(), res, stored)
	if err != nil {
		return nil, err
	}
	obj := old.DeepCopyObject().(api.Object)
	change(obj)
	if equal.Semantic(obj, old) {
		return nil, nil
	}
	if subresource == "" {
		strategy.CountGeneration(res, obj, old)
	}
	owners, err := fieldmanager.Update(context.Background(), o.s.Registry.Snapshot(), res, obj, old,
		old.GetManagedFields(), o.writer(res, subresource))
	if err != nil {
		return nil, err
	}
	obj.SetManagedFields(owners)
	doc, err := encoding.Encode(res, obj)
	return []storage.Write{{Op: storage.Update, Key: stored.Key, Value: doc, Expect: stored.Revision,
		Ending: obj.GetDeletionTimestamp() != nil}}, err
}

// writer is the server as a field manager.
func (o ownObjects) writer(res *api.Resource, subresource string) fieldmanager.Writer {
	return fieldmanager.Writer{Manager: "kube-apiserver", APIVersion: res.GroupVersion().String(),
		Subresource: subresource,
		At:          o.s.now()}
}
