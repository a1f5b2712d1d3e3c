package apiserver

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/equal"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/apiserver/fieldmanager"
	"github.com/coxswain-dev/coxswain/apiserver/loopback"
	"github.com/coxswain-dev/coxswain/apiserver/serviceresolver"
	"github.com/coxswain-dev/coxswain/apiserver/strategy"
	"github.com/coxswain-dev/coxswain/storage"
)

// loopbackClient is the server's client for itself.
type loopbackClient struct{ s *Server }

var (
	_ loopback.Client        = loopbackClient{}
	_ serviceresolver.Reader = loopbackClient{}
)

// Collection implements loopback.Client.
func (c loopbackClient) Collection(res *api.Resource) *storage.Collection { return c.s.collection(res) }

// Create implements loopback.Client.
func (c loopbackClient) Create(res *api.Resource, obj api.Object) (storage.Write, error) {
	if res.Default != nil {
		res.Default(obj)
	}
	owners := fieldmanager.Create(res, obj, c.writer(res, ""))
	strategy.BeforeCreate(res, obj, c.s.Clock.Now())
	obj.SetManagedFields(owners)
	doc, err := encoding.Encode(res, obj)
	return storage.Write{Op: storage.Create, Key: storage.Key{Collection: res.Collection(),
		Namespace: obj.GetNamespace(), Name: obj.GetName()}, Value: doc}, err
}

// Update implements loopback.Client.
func (c loopbackClient) Update(ctx context.Context, res *api.Resource, stored *storage.Object, subresource string,
	change func(api.Object)) ([]storage.Write, error) {
	old, err := encoding.Decode(ctx, res, stored)
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
	owners, err := fieldmanager.Update(ctx, c.s.Registry.Snapshot(), res, obj, old,
		old.GetManagedFields(), c.writer(res, subresource))
	if err != nil {
		return nil, err
	}
	obj.SetManagedFields(owners)
	doc, err := encoding.Encode(res, obj)
	return []storage.Write{{Op: storage.Update, Key: stored.Key, Value: doc, Expect: stored.Revision,
		Ending: obj.GetDeletionTimestamp() != nil}}, err
}

// writer returns the server as a field manager.
func (c loopbackClient) writer(res *api.Resource, subresource string) fieldmanager.Writer {
	return fieldmanager.Writer{Manager: "kube-apiserver", APIVersion: res.GroupVersion().String(),
		Subresource: subresource, At: c.s.now()}
}

// ttlUser deletes objects whose time has ended. It needs no authorization: the right to delete was checked when the
// time was set.
var ttlUser = &authn.User{Name: "system:apiserver-ttl", Groups: []string{authn.GroupAuthenticated}}

// Delete implements loopback.Client by the function that answers a DELETE.
func (c loopbackClient) Delete(ctx context.Context, res *api.Resource, stored *storage.Object) error {
	r, record, err := c.s.ownRequest(ctx, ttlUser, "delete", res, stored.Key.Namespace, stored.Key.Name)
	if err != nil {
		return err
	}
	uid, revision := types.UID(stored.UID), strconv.FormatInt(stored.Revision, 10)
	_, err = c.s.deleteOne(r, &metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &revision}})
	c.s.concluded(record, err)
	return err
}

// definitionUser deletes the objects of a kind whose definition is being deleted. It needs no authorization: the right
// to delete the definition is one to delete what it defines.
var definitionUser = &authn.User{Name: "system:apiserver-definitions", Groups: []string{authn.GroupAuthenticated}}

// DeleteAll implements loopback.Client.
func (c loopbackClient) DeleteAll(ctx context.Context, res *api.Resource) error {
	list, err := c.s.collection(res).List(ctx, storage.ListRequest{})
	if err != nil {
		return fmt.Errorf("deleting all %s: %w", res.Plural, err)
	}
	if len(list.Items) == 0 {
		return nil
	}
	r, record, err := c.s.ownRequest(ctx, definitionUser, "deletecollection", res, "", "")
	if err != nil {
		return err
	}
	_, err = c.s.deleteListed(r, &metav1.DeleteOptions{}, list.Items)
	c.s.concluded(record, err)
	return err
}

// Object implements serviceresolver.Reader. It reads from memory, and from etcd if memory does not have the object
// (yet).
func (c loopbackClient) Object(ctx context.Context, kind schema.GroupVersionKind, namespace, name string) (
	api.Object, error) {
	res := c.s.Registry.Snapshot().Kind(kind)
	if res == nil {
		return nil, notFoundPath()
	}
	o, err := c.s.collection(res).Get(ctx, namespace, name, storage.At{Any: true})
	if errors.Is(err, storage.ErrNotFound) { // memory may be behind
		o, err = c.s.collection(res).Get(ctx, namespace, name, storage.At{})
	}
	if errors.Is(err, storage.ErrNotFound) {
		return nil, apierrors.NewNotFound(res.GroupResource(), name)
	}
	if err != nil {
		return nil, err
	}
	return encoding.Decode(ctx, res, o)
}

// EndpointSlices implements serviceresolver.Reader.
func (c loopbackClient) EndpointSlices(ctx context.Context, namespace, service string) (
	[]*discoveryv1.EndpointSlice, error) {
	selector := labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: service})
	res := c.s.Registry.Snapshot().Kind(discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"))
	match := func(o *storage.Object) bool { return selector.Matches(o.Labels) }
	list, err := c.s.collection(res).List(ctx, storage.ListRequest{
		Scope: storage.Scope{Namespace: namespace, Match: match}, At: storage.At{Any: true}})
	if err != nil {
		return nil, err
	}
	found := make([]*discoveryv1.EndpointSlice, len(list.Items))
	for i, o := range list.Items {
		obj, err := encoding.Decode(ctx, res, o)
		if err != nil {
			return nil, err
		}
		found[i] = obj.(*discoveryv1.EndpointSlice)
	}
	return found, nil
}
