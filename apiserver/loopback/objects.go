package loopback

import (
	"context"
	"errors"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/equal"
	"github.com/coxswain-dev/coxswain/apiserver/audit"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/apiserver/fieldmanager"
	"github.com/coxswain-dev/coxswain/apiserver/serviceresolver"
	"github.com/coxswain-dev/coxswain/apiserver/status"
	"github.com/coxswain-dev/coxswain/apiserver/strategy"
	"github.com/coxswain-dev/coxswain/storage"
)

// Options assemble Objects. All fields except Audit are required.
type Options struct {
	Store    *storage.Store
	Registry *api.Registry
	Clock    clock.PassiveClock
	// Audit records the server's writes; nil for none.
	Audit *audit.Auditor
	// UserAgent is the user agent of the server in the audit log.
	UserAgent string
}

// Objects implements Client, except for the deletions, which are the server's own verbs. It has no state besides its
// options, and is safe for concurrent use.
type Objects struct{ o Options }

var _ serviceresolver.Reader = (*Objects)(nil)

// New returns the client of the server with these options.
func New(o Options) *Objects { return &Objects{o} }

// Collection implements Client.
func (c *Objects) Collection(res *api.Resource) *storage.Collection {
	res = res.Stored()
	return c.o.Store.Collection(res.Collection(), storage.CollectionOptions{Fields: res.SelectablePaths(),
		Index: res.FieldIndex})
}

// Create implements Client.
func (c *Objects) Create(res *api.Resource, obj api.Object) (storage.Write, error) {
	if res.Default != nil {
		res.Default(obj)
	}
	owners := fieldmanager.Create(res, obj, c.writer(res, ""))
	strategy.BeforeCreate(res, obj, c.o.Clock.Now())
	obj.SetManagedFields(owners)
	doc, err := encoding.Encode(res, obj)
	return storage.Write{Op: storage.Create, Key: storage.Key{Collection: res.Collection(),
		Namespace: obj.GetNamespace(), Name: obj.GetName()}, Value: doc}, err
}

// Update implements Client.
func (c *Objects) Update(ctx context.Context, res *api.Resource, stored *storage.Object, subresource string,
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
	owners, err := fieldmanager.Update(ctx, c.o.Registry.Snapshot(), res, obj, old,
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
func (c *Objects) writer(res *api.Resource, subresource string) fieldmanager.Writer {
	return fieldmanager.Writer{Manager: "kube-apiserver", APIVersion: res.GroupVersion().String(),
		Subresource: subresource, At: metav1.NewTime(c.o.Clock.Now().UTC()).Rfc3339Copy()}
}

// Object implements serviceresolver.Reader. It reads from memory, and from etcd if memory does not have the object
// (yet).
func (c *Objects) Object(ctx context.Context, kind schema.GroupVersionKind, namespace, name string) (
	api.Object, error) {
	res := c.o.Registry.Snapshot().Kind(kind)
	if res == nil {
		return nil, status.NotServed()
	}
	o, err := c.Collection(res).Get(ctx, namespace, name, storage.At{Any: true})
	if errors.Is(err, storage.ErrNotFound) { // memory may be behind
		o, err = c.Collection(res).Get(ctx, namespace, name, storage.At{})
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
func (c *Objects) EndpointSlices(ctx context.Context, namespace, service string) (
	[]*discoveryv1.EndpointSlice, error) {
	selector := labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: service})
	res := c.o.Registry.Snapshot().Kind(discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"))
	match := func(o *storage.Object) bool { return selector.Matches(o.Labels) }
	list, err := c.Collection(res).List(ctx, storage.ListRequest{
		Scope: storage.Scope{Namespace: namespace, Match: match}, At: storage.At{Any: true}})
	if err != nil {
		return nil, err
	}
	slices := make([]*discoveryv1.EndpointSlice, len(list.Items))
	for i, o := range list.Items {
		obj, err := encoding.Decode(ctx, res, o)
		if err != nil {
			return nil, err
		}
		slices[i] = obj.(*discoveryv1.EndpointSlice)
	}
	return slices, nil
}
