package resourcequota

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
	"github.com/coxswain-dev/coxswain/internal/client/informer"
)

// errNotServed is about a resource that the API server does not have now.
var errNotServed = errors.New("the API server has no such namespaced resource")

// syncLimit is how long a count waits until the watch of a resource has begun.
const syncLimit = 10 * time.Second

// monitors watch, from metadata only, the resources that some quota counts by number: from the
// first time that one does until the controller ends or the resource is no longer served.
type monitors struct {
	env *controller.Env
	// gone has the quotas of a namespace, "" for all, counted again.
	gone func(namespace string, of schema.GroupResource)
	wake chan *monitor

	mu    sync.Mutex
	known map[schema.GroupResource]*monitor
}

// monitor watches one resource.
type monitor struct {
	gvr    schema.GroupVersionResource
	run    func(context.Context)
	synced cache.DoneChecker
	ended  chan struct{} // closed when the resource is no longer served in this version
}

func newMonitors(env *controller.Env, gone func(string, schema.GroupResource)) *monitors {
	return &monitors{env: env, gone: gone, wake: make(chan *monitor), known: map[schema.GroupResource]*monitor{}}
}

// run starts the monitors that are asked for, and ends when all have.
func (m *monitors) run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case one := <-m.wake:
			running.Go(func() {
				ctx, stop := context.WithCancel(ctx)
				defer stop()
				running.Go(func() {
					select {
					case <-ctx.Done():
					case <-one.ended:
					case <-one.synced.Done(): // an object may have come and gone while the watch began
						m.gone(metav1.NamespaceAll, one.gvr.GroupResource())
					}
					select {
					case <-ctx.Done():
					case <-one.ended:
						stop()
					}
				})
				one.run(ctx)
			})
		}
	}
}

// end forgets a monitor whose resource is no longer served in its version. Another version may be: the next count
// finds out.
func (m *monitors) end(one *monitor) {
	of := one.gvr.GroupResource()
	m.mu.Lock()
	if m.known[of] != one {
		m.mu.Unlock()
		return
	}
	delete(m.known, of)
	close(one.ended)
	m.mu.Unlock()
	m.gone(metav1.NamespaceAll, of)
}

func (m *monitors) monitor(gvr schema.GroupVersionResource) *monitor {
	one := &monitor{gvr: gvr, ended: make(chan struct{})}
	follow := func(i *informer.Informer) cache.ResourceEventHandlerRegistration {
		registration, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(obj any) {
			if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = last.Obj
			}
			if o, ok := obj.(metav1.Object); ok {
				m.gone(o.GetNamespace(), gvr.GroupResource())
			}
		}})
		if err != nil {
			return nil // it has been stopped
		}
		one.synced = registration.HasSyncedChecker()
		return registration
	}
	if shared := m.env.Informers.Existing(gvr); shared != nil {
		if registration := follow(shared); registration != nil {
			one.run = func(ctx context.Context) {
				<-ctx.Done()
				_ = shared.RemoveEventHandler(registration) // never fails
			}
			return one
		}
	}
	own := informer.NewMetadata(m.env.Reader, gvr, m.env.Log)
	one.run = own.RunWithContext
	own.OnError(func(err error) {
		if apierrors.IsNotFound(err) {
			m.end(one)
		}
	})
	_ = own.SetTransform(func(obj any) (any, error) { // fails only on an informer that runs already
		if o, ok := obj.(*metav1.PartialObjectMetadata); ok {
			o.ObjectMeta = metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name, UID: o.UID,
				ResourceVersion: o.ResourceVersion}
		}
		return obj, nil
	})
	follow(own)
	return one
}

// watches reports whether a resource is watched.
func (m *monitors) watches(of schema.GroupResource) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.known[of]
	return ok
}

// follow has a resource watched, and returns a version of it that is served. From then on it sees what goes.
func (m *monitors) follow(ctx context.Context, of schema.GroupResource) (schema.GroupVersionResource, error) {
	one, err := m.watch(ctx, of)
	if err != nil {
		return schema.GroupVersionResource{}, err
	}
	late := clock.RealClock{}.NewTimer(syncLimit)
	defer late.Stop()
	select {
	case <-one.synced.Done():
		return one.gvr, nil
	case <-one.ended:
		return one.gvr, fmt.Errorf("%s: %w", one.gvr, controller.ErrRequeue)
	case <-late.C():
		return one.gvr, fmt.Errorf("the watch of %s has not begun after %s", one.gvr, syncLimit)
	case <-ctx.Done():
		return one.gvr, ctx.Err()
	}
}

// watch returns the resource's monitor, which it starts if there is none.
func (m *monitors) watch(ctx context.Context, of schema.GroupResource) (*monitor, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if one, ok := m.known[of]; ok {
		return one, nil
	}
	gvr, err := m.discover(of)
	if err != nil {
		return nil, err
	}
	one := m.monitor(gvr)
	select {
	case m.wake <- one:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	m.known[of] = one
	return one, nil
}

func (m *monitors) discover(of schema.GroupResource) (schema.GroupVersionResource, error) {
	lists, err := m.env.Client().Discovery().ServerPreferredNamespacedResources()
	partial := &discovery.ErrGroupDiscoveryFailed{}
	if err != nil && !errors.As(err, &partial) {
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
	for gv, err := range partial.Groups { // its server may be away, and its objects still be there
		if gv.Group == of.Group {
			return schema.GroupVersionResource{}, fmt.Errorf("discovery of %s: %w", gv, err)
		}
	}
	return schema.GroupVersionResource{}, errNotServed
}
