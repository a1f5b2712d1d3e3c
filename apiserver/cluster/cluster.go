// Package cluster shows the stored objects to the parts of a server that judge requests by them, each through the
// interface that it needs:
//
//	cluster.go      admission plugins: objects by name, decoded once per revision
//	documents.go    admission policies: kinds and versions, and objects as documents
//	nodes.go        the Node authorizer
//	rbac.go         RBAC: an index that is kept in step with the stored roles and bindings
//	credentials.go  authentication
//
// All of them read memory; an object that memory lacks is looked up once more when memory is as new as etcd.
// Newest is for answers that must be as new as etcd in any case. The package knows no request and must not import the
// server.
package cluster

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/admission"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/apiserver/fieldmanager"
	"github.com/coxswain-dev/coxswain/apiserver/loopback"
	"github.com/coxswain-dev/coxswain/apiserver/status"
	"github.com/coxswain-dev/coxswain/storage"
)

// Options assemble a Cluster. All are required.
type Options struct {
	Store    *storage.Store
	Registry *api.Registry
	Objects  loopback.Client
	// Authorizer decides about the rights of users for plugins and policies.
	Authorizer authz.Authorizer
	// Appliers have the schemas for merging the patches of policies.
	Appliers *fieldmanager.Appliers
	Log      *slog.Logger
}

// Cluster shows the objects in memory to admission plugins (admission.Cluster). The few objects that every pod is
// checked against (its namespace, its service account, priority classes) are decoded once per revision. Its methods
// are safe for concurrent use, and the objects that they return are shared: they must not be changed.
type Cluster struct {
	Options

	// mu guards the fields below. Objects are decoded without it: two goroutines may decode the same one, and the last
	// is kept.
	mu      sync.RWMutex
	decoded map[storage.Key]decodedObject
	// byName is an index of the registry at generation.
	byName     map[schema.GroupResource]*api.Resource
	generation int64
}

// decodedObject is current as long as memory has the same stored object.
type decodedObject struct {
	stored *storage.Object
	obj    api.Object
}

const (
	// maxDecoded is the number of decoded objects that are kept.
	maxDecoded = 1024
	// maxListed is the length of the longest list with objects that are worth keeping.
	maxListed = 32
	// accountPatience is how long a pod waits for the service account of a new namespace.
	accountPatience = time.Second
)

var _ admission.Cluster = (*Cluster)(nil)

// New returns the view of a store. It does not read from the store yet.
func New(o Options) *Cluster { return &Cluster{Options: o, decoded: map[storage.Key]decodedObject{}} }

// Resource finds a registration by the resource's name alone, nil if it is not served.
func (c *Cluster) Resource(name schema.GroupResource) *api.Resource {
	now := c.Registry.Snapshot()
	c.mu.RLock()
	res, current := c.byName[name], c.generation == now.Generation && c.byName != nil
	c.mu.RUnlock()
	if current {
		return res
	}
	byName := make(map[schema.GroupResource]*api.Resource, len(now.Resources))
	for _, res := range now.Resources {
		byName[res.GroupResource()] = res
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.byName, c.generation = byName, now.Generation
	return byName[name]
}

// Forget drops all decoded objects, because some may be of kinds that the registry no longer has.
func (c *Cluster) Forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.byName = nil
	clear(c.decoded)
}

// decode returns an object that is shared: it must not be changed.
func (c *Cluster) decode(ctx context.Context, res *api.Resource, o *storage.Object) (api.Object, error) {
	c.mu.RLock()
	last := c.decoded[o.Key]
	c.mu.RUnlock()
	if last.stored == o {
		return last.obj, nil
	}
	obj, err := encoding.Decode(ctx, res, o)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.decoded) >= maxDecoded {
		clear(c.decoded)
	}
	c.decoded[o.Key] = decodedObject{stored: o, obj: obj}
	return obj, nil
}

// Get implements admission.Cluster.
func (c *Cluster) Get(ctx context.Context, resource schema.GroupResource, namespace, name string) (api.Object, error) {
	res := c.Resource(resource)
	if res == nil {
		return nil, admission.ErrNotFound
	}
	objects := c.Objects.Collection(res)
	o, err := objects.Get(ctx, namespace, name, storage.At{Any: true})
	if errors.Is(err, storage.ErrNotFound) {
		o, err = objects.Get(ctx, namespace, name, storage.At{})
	}
	if errors.Is(err, storage.ErrNotFound) {
		return nil, admission.ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	return c.decode(ctx, res, o)
}

// Newest reads an object as new as etcd has it, in a copy of the caller's own. For one that does not exist it returns
// the error that a client's read would get.
func (c *Cluster) Newest(ctx context.Context, kind schema.GroupVersionKind, namespace, name string) (
	api.Object, error) {
	res := c.Served(kind)
	if res == nil {
		return nil, status.NotServed()
	}
	o, err := c.Objects.Collection(res).Get(ctx, namespace, name, storage.At{})
	if errors.Is(err, storage.ErrNotFound) {
		return nil, apierrors.NewNotFound(res.GroupResource(), name)
	}
	if err != nil {
		return nil, err
	}
	return encoding.Decode(ctx, res, o)
}

// List implements admission.Cluster.
func (c *Cluster) List(ctx context.Context, resource schema.GroupResource, namespace string,
	fresh bool) ([]api.Object, error) {
	res := c.Resource(resource)
	if res == nil {
		return nil, nil
	}
	objects := c.Objects.Collection(res)
	if !fresh && objects.Count() == 0 {
		return nil, nil
	}
	l, err := objects.List(ctx, storage.ListRequest{Scope: storage.Scope{Namespace: namespace},
		At: storage.At{Any: !fresh}})
	if err != nil {
		return nil, err
	}
	read := c.decode
	if len(l.Items) > maxListed {
		read = encoding.Decode
	}
	all := make([]api.Object, len(l.Items))
	for i, o := range l.Items {
		if all[i], err = read(ctx, res, o); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Await implements admission.Cluster.
func (c *Cluster) Await(ctx context.Context, resource schema.GroupResource, namespace,
	name string) (api.Object, error) {
	obj, err := c.Get(ctx, resource, namespace, name)
	if !errors.Is(err, admission.ErrNotFound) {
		return obj, err
	}
	res := c.Resource(resource)
	if res == nil {
		return nil, err
	}
	patience, cancel := context.WithTimeout(ctx, accountPatience)
	defer cancel()
	w, err := c.Objects.Collection(res).Watch(patience,
		storage.WatchRequest{Scope: storage.Scope{Namespace: namespace, Name: name}, Any: true})
	if err != nil {
		return nil, err
	}
	defer w.Close()
	for {
		events, err := w.Next(patience)
		if ctx.Err() == nil && patience.Err() != nil {
			return nil, admission.ErrNotFound
		}
		if err != nil {
			return nil, err
		}
		for _, e := range events {
			if e.Type == storage.Added || e.Type == storage.Modified {
				return c.decode(ctx, res, e.Object)
			}
		}
	}
}

// CreateNamespace implements admission.Cluster.
func (c *Cluster) CreateNamespace(ctx context.Context, ns *corev1.Namespace) error {
	res := c.Registry.Snapshot().Kind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	write, err := c.Objects.Create(res, ns)
	if err != nil {
		return err
	}
	if _, err := c.Objects.Commit(ctx, write); !errors.Is(err, storage.ErrExists) {
		return err
	}
	return nil
}
