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

// errNotServed means that the API server currently does not serve the resource.
var errNotServed = errors.New("the API server has no such namespaced resource")

// syncLimit is how long a count waits for the watch of a resource to start.
const syncLimit = 10 * time.Second

// monitors watches the metadata of the resources that a quota counts. The watch of a resource starts with the
// first count and lasts until the controller ends or the resource is no longer served.
type monitors struct {
	env *controller.Env
	// deleted is called after objects of a resource were deleted in a namespace, "" for all namespaces. The quotas
	// there must be counted again.
	deleted func(namespace string, resource schema.GroupResource)
	// start passes new monitors to run.
	start chan *monitor

	mu     sync.Mutex
	active map[schema.GroupResource]*monitor
}

// monitor watches one resource.
type monitor struct {
	gvr    schema.GroupVersionResource
	run    func(context.Context)
	synced cache.DoneChecker
	ended  chan struct{} // closed when the resource is no longer served in this version
}

func newMonitors(env *controller.Env, deleted func(string, schema.GroupResource)) *monitors {
	return &monitors{env: env, deleted: deleted, start: make(chan *monitor),
		active: map[schema.GroupResource]*monitor{}}
}

// run runs the monitors from m.start. It returns after ctx is done and all monitors have ended.
func (m *monitors) run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case one := <-m.start:
			running.Go(func() {
				ctx, stop := context.WithCancel(ctx)
				defer stop()
				running.Go(func() {
					select {
					case <-ctx.Done():
					case <-one.ended:
					case <-one.synced.Done(): // objects may have been deleted before the watch started
						m.deleted(metav1.NamespaceAll, one.gvr.GroupResource())
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

// end removes a monitor whose resource is no longer served in its version. The next count starts a new monitor if
// another version is served.
func (m *monitors) end(one *monitor) {
	resource := one.gvr.GroupResource()
	m.mu.Lock()
	if m.active[resource] != one {
		m.mu.Unlock()
		return
	}
	delete(m.active, resource)
	close(one.ended)
	m.mu.Unlock()
	m.deleted(metav1.NamespaceAll, resource)
}

// monitor creates the monitor of a resource. It uses the shared informer of the resource, if there is one, else an
// informer of its own.
func (m *monitors) monitor(gvr schema.GroupVersionResource) *monitor {
	one := &monitor{gvr: gvr, ended: make(chan struct{})}
	follow := func(i *informer.Informer) cache.ResourceEventHandlerRegistration {
		registration, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(obj any) {
			if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = last.Obj
			}
			if o, ok := obj.(metav1.Object); ok {
				m.deleted(o.GetNamespace(), gvr.GroupResource())
			}
		}})
		if err != nil {
			return nil // the informer has been stopped
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
	_ = own.SetTransform(func(obj any) (any, error) { // fails only on an informer that is already running
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
func (m *monitors) watches(resource schema.GroupResource) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.active[resource]
	return ok
}

// follow waits until a resource is watched, and returns it with a served version. Later deletions are reported.
func (m *monitors) follow(ctx context.Context, resource schema.GroupResource) (schema.GroupVersionResource, error) {
	one, err := m.watch(ctx, resource)
	if err != nil {
		return schema.GroupVersionResource{}, err
	}
	timeout := clock.RealClock{}.NewTimer(syncLimit)
	defer timeout.Stop()
	select {
	case <-one.synced.Done():
		return one.gvr, nil
	case <-one.ended:
		return one.gvr, fmt.Errorf("%s: %w", one.gvr, controller.ErrRequeue)
	case <-timeout.C():
		return one.gvr, fmt.Errorf("the watch of %s has not begun after %s", one.gvr, syncLimit)
	case <-ctx.Done():
		return one.gvr, ctx.Err()
	}
}

// watch returns the monitor of a resource, and starts one if there is none.
func (m *monitors) watch(ctx context.Context, resource schema.GroupResource) (*monitor, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if one, ok := m.active[resource]; ok {
		return one, nil
	}
	gvr, err := m.discover(resource)
	if err != nil {
		return nil, err
	}
	one := m.monitor(gvr)
	select {
	case m.start <- one:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	m.active[resource] = one
	return one, nil
}

// discover returns the resource with its preferred version, or errNotServed.
func (m *monitors) discover(resource schema.GroupResource) (schema.GroupVersionResource, error) {
	lists, err := m.env.Client().Discovery().ServerPreferredNamespacedResources()
	partial := &discovery.ErrGroupDiscoveryFailed{}
	if err != nil && !errors.As(err, &partial) {
		return schema.GroupVersionResource{}, fmt.Errorf("discovery: %w", err)
	}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil || gv.Group != resource.Group {
			continue
		}
		if slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool {
			return r.Name == resource.Resource && slices.Contains(r.Verbs, "watch")
		}) {
			return gv.WithResource(resource.Resource), nil
		}
	}
	for gv, err := range partial.Groups { // its server may be unavailable, while its objects still exist
		if gv.Group == resource.Group {
			return schema.GroupVersionResource{}, fmt.Errorf("discovery of %s: %w", gv, err)
		}
	}
	return schema.GroupVersionResource{}, errNotServed
}
