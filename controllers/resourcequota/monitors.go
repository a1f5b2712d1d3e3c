package resourcequota

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"

	"github.com/coxswain-dev/coxswain/controllers/controller"
)

// errNotServed is about a resource that the API server does not have now.
var errNotServed = errors.New("the API server has no such namespaced resource")

// monitors watch, from metadata only, the resources that some quota counts by number: from the
// first time that one does until the controller ends or the resource is no longer served.
type monitors struct {
	env  *controller.Env
	gone func(namespace string, of schema.GroupResource)
	wake chan schema.GroupVersionResource

	mu    sync.Mutex
	known map[schema.GroupResource]schema.GroupVersionResource
}

func newMonitors(env *controller.Env, gone func(string, schema.GroupResource)) *monitors {
	return &monitors{
		env: env, gone: gone,
		wake:  make(chan schema.GroupVersionResource),
		known: map[schema.GroupResource]schema.GroupVersionResource{},
	}
}

// run starts the monitors that are asked for, and ends when all have.
func (m *monitors) run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case gvr := <-m.wake:
			running.Go(func() {
				ctx, stop := context.WithCancel(ctx)
				defer stop()
				m.informer(gvr, stop).RunWithContext(ctx)
			})
		}
	}
}

// informer is one of a resource. It calls stop when the resource is no longer served in this version.
func (m *monitors) informer(gvr schema.GroupVersionResource, stop func()) cache.SharedIndexInformer {
	informer := metadatainformer.NewFilteredMetadataInformer(m.env.Metadata, gvr, metav1.NamespaceAll, 0, nil,
		nil).Informer()
	// These calls fail only on an informer that runs already.
	_ = informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		if !apierrors.IsNotFound(err) {
			cache.DefaultWatchErrorHandler(ctx, r, err)
			return
		}
		m.mu.Lock()
		delete(m.known, gvr.GroupResource())
		m.mu.Unlock()
		stop()
	})
	_ = informer.SetTransform(func(obj any) (any, error) {
		if o, ok := obj.(*metav1.PartialObjectMetadata); ok {
			o.ObjectMeta = metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name, UID: o.UID,
				ResourceVersion: o.ResourceVersion}
		}
		return obj, nil
	})
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(obj any) {
		if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = last.Obj
		}
		if o, ok := obj.(*metav1.PartialObjectMetadata); ok {
			m.gone(o.Namespace, gvr.GroupResource())
		}
	}})
	return informer
}

// watches reports whether a resource is watched.
func (m *monitors) watches(of schema.GroupResource) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.known[of]
	return ok
}

// follow has a resource watched, and returns a version of it that is served.
func (m *monitors) follow(ctx context.Context, of schema.GroupResource) (schema.GroupVersionResource, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if gvr, ok := m.known[of]; ok {
		return gvr, nil
	}
	gvr, err := m.discover(of)
	if err != nil {
		return gvr, err
	}
	select {
	case m.wake <- gvr:
	case <-ctx.Done():
		return gvr, ctx.Err()
	}
	m.known[of] = gvr
	return gvr, nil
}

func (m *monitors) discover(of schema.GroupResource) (schema.GroupVersionResource, error) {
	lists, err := m.env.Client.Discovery().ServerPreferredNamespacedResources()
	if partial := (&discovery.ErrGroupDiscoveryFailed{}); err != nil && !errors.As(err, &partial) {
		return schema.GroupVersionResource{}, fmt.Errorf("discovery: %w", err)
	}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil || gv.Group != of.Group {
			continue
		}
		if slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool {
			return r.Name == of.Resource && slices.Contains(r.Verbs, "watch")
		}) {
			return gv.WithResource(of.Resource), nil
		}
	}
	return schema.GroupVersionResource{}, errNotServed
}
