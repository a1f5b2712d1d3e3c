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

	"github.com/prometheus/client_golang/prometheus"
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
	// rediscover is the period of discovery. A change of a CustomResourceDefinition or an APIService triggers
	// it, too.
	rediscover = 30 * time.Second
	// retryDiscovery is the pause after failed discovery, before there is a graph. This and the following are
	// real time.
	retryDiscovery = time.Second
	// minDiscoveryInterval is the least time between two discoveries, however often the set of resources
	// changes.
	minDiscoveryInterval = 200 * time.Millisecond
	// firstSync bounds how long a resource that cannot be listed delays all others.
	firstSync = 30 * time.Second
)

// ignored lists resources with very many objects, which neither own nor are owned.
var ignored = map[schema.GroupResource]bool{
	{Resource: "events"}:                         true,
	{Group: "events.k8s.io", Resource: "events"}: true,
}

// defines lists the resources whose objects define further resources.
var defines = map[schema.GroupResource]bool{
	{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}: true,
	{Group: "apiregistration.k8s.io", Resource: "apiservices"}:             true,
}

// resource is a resource found by discovery.
type resource struct {
	gvr        schema.GroupVersionResource
	gvk        schema.GroupVersionKind
	namespaced bool
}

// monitors runs an informer for each resource that can be collected, and feeds its events to the collector. run
// starts and stops the informers; it is the only goroutine that writes running.
type monitors struct {
	collector *collector
	discovery discovery.DiscoveryInterface
	client    kubernetes.Interface
	shared    *informer.Factory
	clock     clock.WithTicker
	log       *slog.Logger
	failures  func() *prometheus.CounterVec // of discovery
	real      clock.RealClock               // for pauses and timeouts
	changed   chan struct{}                 // of one element: the set of resources may have changed
	synced    chan struct{}                 // closed when the graph is complete for the first time

	// asked counts the requests for discovery, and followed is the value of asked when follow last finished.
	// They differ while a change of the set of resources is pending (busy).
	asked, followed atomic.Int64

	mu sync.Mutex
	// kinds has the resources of all kinds in all versions, also of kinds that are not monitored. mu guards it.
	kinds map[schema.GroupVersionKind]resource
	// running has the monitors that run. Only run changes it, under mu; run itself reads it without the lock.
	running map[schema.GroupVersionResource]*monitor
}

// monitor is the collector's registration with an informer: one that the controllers share, or one of its own
// (own). end removes the registration, or stops the own informer and waits for it.
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
		failures: env.Metrics.Counter("garbagecollector_controller_resources_sync_error_total",
			"Number of garbage collector resources sync errors"),
		changed: make(chan struct{}, 1), synced: make(chan struct{}),
		kinds: map[schema.GroupVersionKind]resource{}, running: map[schema.GroupVersionResource]*monitor{},
	}
}

// Name and Done make monitors a cache.DoneChecker of the first complete graph.
func (m *monitors) Name() string          { return "garbage collector's graph" }
func (m *monitors) Done() <-chan struct{} { return m.synced }

// run keeps the monitors in line with discovery until ctx ends, and returns when every informer has stopped.
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
		case <-m.real.After(virtualtime.Pause(m.clock, minDiscoveryInterval)):
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
			m.log.Warn("start without some resources", "missing", gvr)
			return true
		}
	}
	return true
}

// follow discovers resources, and starts and stops monitors accordingly. It reports whether discovery
// succeeded. A resource whose group version could not be discovered keeps its monitor.
func (m *monitors) follow(ctx context.Context) bool {
	defer m.followed.Store(m.asked.Load())
	found, failed, err := m.discover(ctx)
	if err != nil {
		m.log.Warn("failed to discover resources", "err", err)
		m.failures().WithLabelValues().Inc()
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
				m.collector.removed(o.GetUID())
			}
		}
	}
	// Monitors are started after others have ended: another version of the same resource has the same objects.
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
		if _, ok := m.kinds[gvk]; !ok {
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

// unknownKind is the error for a kind that discovery does not have.
type unknownKind struct{ apiVersion, kind string }

// Error implements error.
func (u unknownKind) Error() string {
	return fmt.Sprintf("no resource found for %.100s %.100s", u.apiVersion, u.kind)
}

// resourceOf returns the resource of the kind in a reference. An unknown kind is an error: its server may only
// be unavailable, and its objects may well exist.
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
	default: // a discovery is already pending
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
		if apierrors.IsNotFound(err) { // its definition was deleted, or serves another version
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

// busy describes why the graph does not show a revision yet; "" if it does.
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

// isLocal reports whether the API server itself stores a resource. Aggregated servers have other revisions. The
// caller holds mu.
func (m *monitors) isLocal(r schema.GroupResource) bool {
	if scheme.Scheme.IsGroupRegistered(r.Group) {
		return true
	}
	for gvr, one := range m.running {
		if defines[gvr.GroupResource()] {
			if _, defined, _ := one.GetStore().GetByKey(r.String()); defined || gvr.GroupResource() == r {
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
			if before.GetUID() != after.GetUID() { // deleted and created again between two events
				m.collector.removed(before.GetUID())
			}
			m.collector.observed(nodeOf(res, after))
			changed()
		},
		DeleteFunc: func(obj any) {
			if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = tombstone.Obj
			}
			if o, ok := obj.(metav1.Object); ok {
				m.collector.removed(o.GetUID())
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

// keepEdges drops the metadata that the graph does not need.
func keepEdges(obj any) (any, error) {
	if o, ok := obj.(*metav1.PartialObjectMetadata); ok {
		o.ManagedFields, o.Labels, o.Annotations = nil, nil, nil
	}
	return obj, nil
}
