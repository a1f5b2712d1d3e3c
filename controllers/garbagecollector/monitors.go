package garbagecollector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
	"github.com/coxswain-dev/coxswain/internal/client/informer"
	"github.com/coxswain-dev/coxswain/internal/clock/virtualtime"
)

const (
	// rediscover is how often the API server is asked which resources there are, beside
	// being asked when a CustomResourceDefinition or an APIService changes.
	rediscover = 30 * time.Second
	// retryDiscovery is how soon after a failure it is asked again before there is a graph. This and the following are
	// real time.
	retryDiscovery = time.Second
	// apart is how much later than a question the next may be asked, however often the set of resources changes.
	apart = 200 * time.Millisecond
	// firstSync bounds how long a resource that cannot be listed holds up all others.
	firstSync = 30 * time.Second
)

// ignored are resources whose objects own nothing, are owned by nothing, and are many.
var ignored = map[schema.GroupResource]bool{
	{Resource: "events"}:                         true,
	{Group: "events.k8s.io", Resource: "events"}: true,
}

// defines are resources whose changes change the set of resources.
var defines = map[schema.GroupResource]bool{
	{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}: true,
	{Group: "apiregistration.k8s.io", Resource: "apiservices"}:             true,
}

// resource is one that discovery names.
type resource struct {
	gvr        schema.GroupVersionResource
	gvk        schema.GroupVersionKind
	namespaced bool
}

// monitors keep an informer on each resource that is worth collecting.
type monitors struct {
	collector *collector
	discovery discovery.DiscoveryInterface
	client    kubernetes.Interface
	shared    *informer.Factory
	clock     clock.WithTicker
	log       *slog.Logger
	real      clock.RealClock // of pauses and patience
	changed   chan struct{}   // the set of resources may have changed
	synced    chan struct{}   // closed when the graph is complete for the first time

	// asked counts the changes of the set of resources, and followed those that the monitors have followed.
	asked, followed atomic.Int64

	mu sync.Mutex
	// kinds are all kinds in all versions, those that are not monitored included.
	kinds map[schema.GroupVersionKind]resource
	// running is changed by run alone, which reads it without the lock.
	running map[schema.GroupVersionResource]*monitor
}

// monitor is an informer that the graph follows: one that the controllers share, or one of the collector's own.
type monitor struct {
	*informer.Informer
	handled cache.ResourceEventHandlerRegistration
	own     bool
	end     func()
}

func newMonitors(env *controller.Env, g *collector) *monitors {
	return &monitors{
		collector: g, discovery: env.Reader.Discovery(), client: env.Reader, shared: env.Informers,
		clock: env.Clock, log: g.Log,
		changed: make(chan struct{}, 1), synced: make(chan struct{}),
		kinds: map[schema.GroupVersionKind]resource{}, running: map[schema.GroupVersionResource]*monitor{},
	}
}

// Name and Done make monitors a cache.DoneChecker of the first complete graph.
func (m *monitors) Name() string          { return "garbage collector's graph" }
func (m *monitors) Done() <-chan struct{} { return m.synced }

// run follows the set of resources until ctx ends, and returns when every informer has stopped.
func (m *monitors) run(ctx context.Context) {
	defer func() {
		for _, monitor := range m.running {
			monitor.end()
		}
	}()
	for !m.follow(ctx) {
		select {
		case <-ctx.Done():
			return
		case <-m.real.After(retryDiscovery):
		}
	}
	if !m.awaitFirstSync(ctx) {
		return
	}
	close(m.synced)
	tick := m.real.NewTicker(rediscover)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C():
		case <-m.changed:
		}
		m.follow(ctx)
		select {
		case <-ctx.Done():
			return
		case <-m.real.After(virtualtime.Pause(m.clock, apart)):
		}
	}
}

func (m *monitors) awaitFirstSync(ctx context.Context) bool {
	late := m.real.NewTimer(firstSync)
	defer late.Stop()
	for gvr, monitor := range m.running {
		select {
		case <-ctx.Done():
			return false
		case <-monitor.handled.HasSyncedChecker().Done():
		case <-late.C():
			m.log.Warn("starting without all resources", "missing", gvr)
			return true
		}
	}
	return true
}

// follow starts and stops monitors so that they are those of the resources there are now,
// and reports whether discovery succeeded.
func (m *monitors) follow(ctx context.Context) bool {
	defer m.followed.Store(m.asked.Load())
	found, failed, err := m.discover(ctx)
	if err != nil {
		m.log.Warn("failed to discover resources", "err", err)
		return false
	}
	for gvr, monitor := range m.running {
		if _, ok := found[gvr]; ok || failed[gvr.GroupVersion()] {
			continue
		}
		m.log.Info("resource is no longer served", "resource", gvr)
		monitor.end()
		m.mu.Lock()
		delete(m.running, gvr)
		m.mu.Unlock()
		for _, obj := range monitor.GetStore().List() {
			if o, ok := obj.(metav1.Object); ok {
				m.collector.gone(o.GetUID())
			}
		}
	}
	// After those that ended: a resource of which another version is watched now has the same objects.
	for gvr, res := range found {
		if m.running[gvr] == nil {
			started := m.start(ctx, res)
			m.mu.Lock()
			m.running[gvr] = started
			m.mu.Unlock()
		}
	}
	return true
}

// discover returns the resources to monitor, each in one version, and the group versions
// that could not be discovered.
func (m *monitors) discover(ctx context.Context) (
	map[schema.GroupVersionResource]resource, map[schema.GroupVersion]bool, error) {
	groups, lists, err := m.discovery.ServerGroupsAndResources()
	failed := map[schema.GroupVersion]bool{}
	if partial := (&discovery.ErrGroupDiscoveryFailed{}); errors.As(err, &partial) {
		for gv := range partial.Groups {
			failed[gv] = true
		}
	} else if err != nil {
		return nil, nil, err
	}
	preferred := map[schema.GroupVersion]bool{}
	for _, g := range groups {
		preferred[schema.GroupVersion{Group: g.Name, Version: g.PreferredVersion.Version}] = true
	}
	kinds := map[schema.GroupVersionKind]resource{}
	chosen := map[schema.GroupResource]resource{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			continue
		}
		for _, r := range list.APIResources {
			if slices.Contains([]byte(r.Name), '/') {
				continue // a subresource
			}
			res := resource{gv.WithResource(r.Name), gv.WithKind(r.Kind), r.Namespaced}
			kinds[res.gvk] = res
			gr := res.gvr.GroupResource()
			if _, ok := chosen[gr]; collectable(r, gr) && (!ok || preferred[gv]) {
				chosen[gr] = res
			}
		}
	}
	m.keepKinds(kinds, failed)
	found := map[schema.GroupVersionResource]resource{}
	for _, res := range chosen {
		found[res.gvr] = res
	}
	return found, failed, nil
}

func collectable(r metav1.APIResource, gr schema.GroupResource) bool {
	return !ignored[gr] && slices.Contains(r.Verbs, "list") && slices.Contains(r.Verbs, "watch") &&
		slices.Contains(r.Verbs, "delete")
}

func (m *monitors) keepKinds(kinds map[schema.GroupVersionKind]resource, failed map[schema.GroupVersion]bool) {
	added := map[schema.GroupVersionKind]bool{}
	m.mu.Lock()
	for gvk := range kinds {
		if _, known := m.kinds[gvk]; !known {
			added[gvk] = true
		}
	}
	maps.DeleteFunc(m.kinds, func(gvk schema.GroupVersionKind, _ resource) bool { return !failed[gvk.GroupVersion()] })
	maps.Copy(m.kinds, kinds)
	m.mu.Unlock()
	if len(added) > 0 {
		m.collector.kindsAdded(added)
	}
}

// unknownKind is a kind that discovery does not have.
type unknownKind struct{ apiVersion, kind string }

// Error implements error.
func (u unknownKind) Error() string {
	return fmt.Sprintf("no resource is known for %.100s %.100s", u.apiVersion, u.kind)
}

// resourceOf finds the resource whose kind a reference names. A kind that is not known is
// an error: its resource may only be out of reach, and its objects may well exist.
func (m *monitors) resourceOf(ref metav1.OwnerReference) (resource, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	res, ok := m.kinds[schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)]
	if !ok {
		return res, unknownKind{ref.APIVersion, ref.Kind}
	}
	return res, nil
}

func (m *monitors) discoverSoon() {
	m.asked.Add(1)
	select {
	case m.changed <- struct{}{}:
	default: // it is already asked for
	}
}

func (m *monitors) start(ctx context.Context, res resource) *monitor {
	if shared := m.shared.Existing(res.gvr); shared != nil {
		if handled, err := shared.AddEventHandler(m.handler(res)); err == nil {
			return &monitor{shared, handled, false, func() { _ = shared.RemoveEventHandler(handled) }} // never fails
		}
	}
	ctx, stop := context.WithCancel(ctx)
	own := informer.NewMetadata(m.client, res.gvr, m.log)
	_ = own.SetTransform(keepEdges) // fails only on an informer that runs already
	own.OnError(func(err error) {
		if apierrors.IsNotFound(err) { // its definition is gone, or another version is served
			m.discoverSoon()
		}
	})
	handled, err := own.AddEventHandler(m.handler(res))
	if err != nil {
		panic(err)
	}
	var running sync.WaitGroup
	running.Go(func() { own.RunWithContext(ctx) })
	return &monitor{own, handled, true, func() {
		stop()
		running.Wait()
	}}
}

// busy describes what keeps the graph from being that of a revision.
func (m *monitors) busy(revision int64) string {
	if m.asked.Load() != m.followed.Load() {
		return "the set of resources has changed"
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for gvr, one := range m.running {
		if !one.own || !m.isLocal(gvr.GroupResource()) {
			continue
		}
		if work := one.Busy(revision); work != "" {
			return work
		}
	}
	return ""
}

// isLocal reports whether a resource is the API server's own: those of aggregated servers have other revisions. The
// caller has the lock.
func (m *monitors) isLocal(of schema.GroupResource) bool {
	if scheme.Scheme.IsGroupRegistered(of.Group) {
		return true
	}
	for gvr, one := range m.running {
		if defines[gvr.GroupResource()] {
			if _, defined, _ := one.GetStore().GetByKey(of.String()); defined || gvr.GroupResource() == of {
				return true
			}
		}
	}
	return false
}

func (m *monitors) handler(res resource) cache.ResourceEventHandler {
	changed := func() {
		if defines[res.gvr.GroupResource()] {
			m.discoverSoon()
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			m.collector.observed(nodeOf(res, obj.(metav1.Object)))
			changed()
		},
		UpdateFunc: func(old, obj any) {
			before, after := old.(metav1.Object), obj.(metav1.Object)
			if before.GetUID() != after.GetUID() { // deleted and created anew between two events
				m.collector.gone(before.GetUID())
			}
			m.collector.observed(nodeOf(res, after))
			changed()
		},
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			if o, ok := obj.(metav1.Object); ok {
				m.collector.gone(o.GetUID())
			}
			changed()
		},
	}
}

func nodeOf(res resource, o metav1.Object) *node {
	return &node{
		gvr: res.gvr, gvk: res.gvk, namespace: o.GetNamespace(), name: o.GetName(), uid: o.GetUID(),
		version: o.GetResourceVersion(), owners: o.GetOwnerReferences(), finalizers: o.GetFinalizers(),
		deleting: o.GetDeletionTimestamp() != nil,
	}
}

// keepEdges drops what the graph has no use for.
func keepEdges(obj any) (any, error) {
	if o, ok := obj.(*metav1.PartialObjectMetadata); ok {
		o.ManagedFields, o.Labels, o.Annotations = nil, nil, nil
	}
	return obj, nil
}
