package apiserver

import (
	"context"
	"errors"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/admission"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
	"github.com/coxswain-dev/coxswain/storage"
)

// cluster is what admission plugins may know of the cluster (admission.Cluster): what the
// store holds in memory. The few objects that every pod is held against (its namespace, its
// service account, priority classes) are decoded once for each of their revisions.
type cluster struct {
	server *Server

	mu      sync.RWMutex
	decoded map[storage.Key]decodedObject
	// byName is of the registry's generation that it was made for.
	byName     map[schema.GroupResource]*api.Resource
	generation int64
}

type decodedObject struct {
	of  *storage.Object
	obj api.Object
}

const (
	// maxDecoded is how many decoded objects are kept.
	maxDecoded = 1024
	// maxListed is how long a list may be whose objects are worth keeping.
	maxListed = 32
	// accountPatience is how long a pod waits for the service account of a new namespace.
	accountPatience = time.Second
)

var _ admission.Cluster = (*cluster)(nil)

func newCluster(s *Server) *cluster {
	return &cluster{server: s, decoded: map[storage.Key]decodedObject{}}
}

// resource finds a registration by the resource's name alone, nil if it is not served.
func (c *cluster) resource(name schema.GroupResource) *api.Resource {
	now := c.server.Registry.Snapshot()
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

// decode returns an object that is shared: it must not be changed.
func (c *cluster) decode(res *api.Resource, o *storage.Object) (api.Object, error) {
	c.mu.RLock()
	known := c.decoded[o.Key]
	c.mu.RUnlock()
	if known.of == o {
		return known.obj, nil
	}
	obj, err := decode(res, o)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.decoded) >= maxDecoded {
		clear(c.decoded)
	}
	c.decoded[o.Key] = decodedObject{of: o, obj: obj}
	return obj, nil
}

// Get implements admission.Cluster.
func (c *cluster) Get(ctx context.Context, resource schema.GroupResource, namespace, name string) (api.Object, error) {
	res := c.resource(resource)
	if res == nil {
		return nil, admission.ErrNotFound
	}
	objects := c.server.collection(res)
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
	return c.decode(res, o)
}

// List implements admission.Cluster.
func (c *cluster) List(ctx context.Context, resource schema.GroupResource, namespace string, fresh bool) ([]api.Object, error) {
	res := c.resource(resource)
	if res == nil {
		return nil, nil
	}
	objects := c.server.collection(res)
	if !fresh && objects.Count() == 0 {
		return nil, nil
	}
	l, err := objects.List(ctx, storage.ListRequest{Scope: storage.Scope{Namespace: namespace}, At: storage.At{Any: !fresh}})
	if err != nil {
		return nil, err
	}
	read := c.decode
	if len(l.Items) > maxListed {
		read = decode
	}
	all := make([]api.Object, len(l.Items))
	for i, o := range l.Items {
		if all[i], err = read(res, o); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Await implements admission.Cluster.
func (c *cluster) Await(ctx context.Context, resource schema.GroupResource, namespace, name string) (api.Object, error) {
	obj, err := c.Get(ctx, resource, namespace, name)
	if !errors.Is(err, admission.ErrNotFound) {
		return obj, err
	}
	res := c.resource(resource)
	if res == nil {
		return nil, err
	}
	patience, cancel := context.WithTimeout(ctx, accountPatience)
	defer cancel()
	w, err := c.server.collection(res).Watch(patience, storage.WatchRequest{Scope: storage.Scope{Namespace: namespace, Name: name}, Any: true})
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
				return c.decode(res, e.Object)
			}
		}
	}
}

// CreateNamespace implements admission.Cluster.
func (c *cluster) CreateNamespace(ctx context.Context, ns *corev1.Namespace) error {
	res := c.server.Registry.Snapshot().Kind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	write, err := c.server.firstWrite(res, ns)
	if err != nil {
		return err
	}
	if _, err := c.server.Store.Commit(ctx, write); !errors.Is(err, storage.ErrExists) {
		return err
	}
	return nil
}

// Kind implements admission.Cluster.
func (c *cluster) Kind(kind schema.GroupVersionKind) (schema.GroupVersionResource, bool) {
	res := c.server.Registry.Snapshot().Kind(kind)
	if res == nil {
		return schema.GroupVersionResource{}, false
	}
	return res.GroupVersion().WithResource(res.Plural), true
}

// Authorize implements admission.Cluster.
func (c *cluster) Authorize(ctx context.Context, user *authn.User, verb string, on schema.GroupVersionResource, subresource, namespace, name string) (bool, string, error) {
	decision, reason, err := c.server.decide(ctx, &authz.Attributes{
		User: user, Verb: verb,
		Group: on.Group, Version: on.Version, Resource: on.Resource, Subresource: subresource, Namespace: namespace, Name: name,
	})
	return decision == authz.Allow, reason, err
}
