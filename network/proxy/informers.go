package proxy

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/coxswain-dev/coxswain/internal/client/informer"
)

// byService is the name of the index of EndpointSlices by their Service.
const byService = "service"

// changes are changes that the tables do not have yet.
type changes struct {
	services  map[types.NamespacedName]bool
	nodes     bool // a Node, or a ServiceCIDR
	endpoints int  // numbers of changed slices, and of changed Services
	objects   int
	triggers  map[family][]time.Time // when the changes happened, for the metrics
}

// source is the proxy's view of the API: copies of objects, and their changes.
type source struct {
	informers *informer.Factory
	services  corelisters.ServiceLister
	nodes     corelisters.NodeLister
	cidrs     networkinglisters.ServiceCIDRLister
	slices    cache.Indexer
	synced    []cache.DoneChecker
	queued    func()        // called with each change
	wake      chan struct{} // buffers one signal while there are changes

	mu      sync.Mutex
	pending changes
}

func newSource(client kubernetes.Interface, nodes []string, log *slog.Logger, queued func()) *source {
	s := &source{queued: queued, wake: make(chan struct{}, 1)}
	s.informers = informer.NewFactory(client, informer.Options{Log: log, Transform: trim})
	// As in Kubernetes, Services of another proxy and headless ones are excluded by their labels, and not even sent.
	others := "!" + proxyNameLabel + ",!" + corev1.IsHeadlessService
	label := func(o *metav1.ListOptions) { o.LabelSelector = others }
	s.informers.Restrict(&corev1.Service{}, label)
	s.informers.Restrict(&discoveryv1.EndpointSlice{}, label)
	if len(nodes) == 1 {
		s.informers.Restrict(&corev1.Node{},
			func(o *metav1.ListOptions) { o.FieldSelector = "metadata.name=" + nodes[0] })
	}
	return s
}

// trim removes the fields that the proxy does not need, which are much of an object's size.
func trim(o any) (any, error) {
	if m, err := meta.Accessor(o); err == nil {
		m.SetManagedFields(nil)
		m.SetOwnerReferences(nil)
		trigger := m.GetAnnotations()[corev1.EndpointsLastChangeTriggerTime]
		m.SetAnnotations(nil)
		if trigger != "" {
			m.SetAnnotations(map[string]string{corev1.EndpointsLastChangeTriggerTime: trigger})
		}
	}
	if n, ok := o.(*corev1.Node); ok {
		n.Status = corev1.NodeStatus{Addresses: n.Status.Addresses}
	}
	return o, nil
}

// start follows the API until ctx ends. stop then waits for the informers.
func (s *source) start(ctx context.Context) (stop func(), err error) {
	core, discovery := s.informers.Core().V1(), s.informers.Discovery().V1()
	s.services, s.nodes = core.Services().Lister(), core.Nodes().Lister()
	cidrs := s.informers.Networking().V1().ServiceCIDRs()
	s.cidrs = cidrs.Lister()
	slices := discovery.EndpointSlices().Informer()
	if err := slices.AddIndexers(cache.Indexers{byService: serviceIndex}); err != nil {
		return nil, err
	}
	s.slices = slices.GetIndexer()
	err = errors.Join(
		handle(s, core.Services().Informer(), s.serviceChanged),
		handle(s, slices, s.sliceChanged),
		handle(s, core.Nodes().Informer(), func(_, _ *corev1.Node, _ bool) { s.pending.nodes = true }),
		handle(s, cidrs.Informer(), func(_, _ *networkingv1.ServiceCIDR, _ bool) { s.pending.nodes = true }))
	if err != nil {
		return nil, err
	}
	s.informers.StartWithContext(ctx)
	return s.informers.Shutdown, nil
}

func serviceIndex(o any) ([]string, error) {
	slice, ok := o.(*discoveryv1.EndpointSlice)
	if !ok {
		return nil, nil
	}
	return []string{serviceOf(slice).String()}, nil
}

// serviceOf returns the Service of a slice.
func serviceOf(s *discoveryv1.EndpointSlice) types.NamespacedName {
	return types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
}

// handle calls changed with an object before and after each change, either of which may be nil. first is true for
// objects of the initial list. The source is locked during the call.
func handle[T any](s *source, i cache.SharedIndexInformer, changed func(old, new *T, first bool)) error {
	call := func(old, new any, first bool) {
		if tombstone, ok := old.(cache.DeletedFinalStateUnknown); ok {
			old = tombstone.Obj
		}
		before, _ := old.(*T)
		after, _ := new.(*T)
		s.mu.Lock()
		changed(before, after, first)
		s.mu.Unlock()
		s.queued()
		s.awake()
	}
	_, err := i.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc:    func(o any, first bool) { call(nil, o, first) },
		UpdateFunc: func(old, new any) { call(old, new, false) },
		DeleteFunc: func(o any) { call(o, nil, false) },
	})
	s.synced = append(s.synced, i.HasSyncedChecker())
	return err
}

func (s *source) awake() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// touch records a changed Service.
func (s *source) touch(name types.NamespacedName) {
	if s.pending.services == nil {
		s.pending.services = map[types.NamespacedName]bool{}
	}
	s.pending.services[name] = true
}

func (s *source) serviceChanged(old, new *corev1.Service, _ bool) {
	s.pending.objects++
	for _, o := range []*corev1.Service{old, new} {
		if o != nil {
			s.touch(types.NamespacedName{Namespace: o.Namespace, Name: o.Name})
		}
	}
}

func (s *source) sliceChanged(old, new *discoveryv1.EndpointSlice, first bool) {
	s.pending.endpoints++
	var before time.Time
	if old != nil {
		s.touch(serviceOf(old))
		before = triggered(old)
	}
	if new == nil {
		return
	}
	s.touch(serviceOf(new))
	if trigger := triggered(new); !first && !trigger.IsZero() && !trigger.Equal(before) {
		f := ipv4
		if new.AddressType == discoveryv1.AddressTypeIPv6 {
			f = ipv6
		}
		if s.pending.triggers == nil {
			s.pending.triggers = map[family][]time.Time{}
		}
		s.pending.triggers[f] = append(s.pending.triggers[f], trigger)
	}
}

// take returns the changes since the last call.
func (s *source) take() changes {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.pending
	s.pending = changes{}
	return taken
}

// slicesOf returns the slices of a Service.
func (s *source) slicesOf(name types.NamespacedName) []*discoveryv1.EndpointSlice {
	found, _ := s.slices.ByIndex(byService, name.String()) // the index exists
	all := make([]*discoveryv1.EndpointSlice, 0, len(found))
	for _, o := range found {
		if slice, ok := o.(*discoveryv1.EndpointSlice); ok {
			all = append(all, slice)
		}
	}
	return all
}
