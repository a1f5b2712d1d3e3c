package dns

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/coxswain-dev/coxswain/internal/client/informer"
)

// Names of the informers' indexes.
const (
	byService = "service"
	byAddress = "address"
)

// watch syncs an index with the API. Event handlers only mark Services as changed. One goroutine recomputes them, so
// that a Service whose EndpointSlices change all the time is computed once for many changes.
type watch struct {
	factory  *informer.Factory
	services toolscache.Indexer
	slices   toolscache.Indexer
	pods     toolscache.Indexer // nil unless pods have names
	synced   []toolscache.DoneChecker
	index    *index
	changed  func()

	mu    sync.Mutex
	dirty map[string]struct{} // "namespace/name"
	wake  chan struct{}
}

func newWatch(client kubernetes.Interface, x *index, pods bool, log *slog.Logger, changed func()) (*watch, error) {
	w := &watch{factory: informer.NewFactory(client, informer.Options{Transform: slim, Log: log}), index: x,
		changed: changed, dirty: map[string]struct{}{}, wake: make(chan struct{}, 1)}
	services := w.factory.Core().V1().Services().Informer()
	slices := w.factory.Discovery().V1().EndpointSlices().Informer()
	w.services, w.slices = services.GetIndexer(), slices.GetIndexer()
	if err := slices.AddIndexers(toolscache.Indexers{byService: indexByService}); err != nil {
		return nil, err
	}
	handlers := map[toolscache.SharedIndexInformer]func(o any, exists bool){
		services: func(o any, _ bool) { w.note(keyOf(o)) },
		slices:   func(o any, _ bool) { w.note(serviceOf(o)) },
		w.factory.Core().V1().Namespaces().Informer(): func(o any, exists bool) {
			x.setNamespace(keyOf(o), exists)
		},
	}
	for i, h := range handlers {
		r, err := i.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc: func(o any) { h(o, true) },
			// An EndpointSlice may move to another Service.
			UpdateFunc: func(old, o any) { h(old, true); h(o, true) },
			DeleteFunc: func(o any) { h(o, false) },
		})
		if err != nil {
			return nil, err
		}
		w.synced = append(w.synced, r.HasSyncedChecker())
	}
	if pods {
		return w, w.watchPods()
	}
	return w, nil
}

func (w *watch) watchPods() error {
	i := w.factory.Core().V1().Pods().Informer()
	w.pods = i.GetIndexer()
	w.synced = append(w.synced, i.HasSyncedChecker())
	return i.AddIndexers(toolscache.Indexers{byAddress: func(o any) ([]string, error) {
		pod, ok := o.(*corev1.Pod)
		if !ok || pod.Spec.HostNetwork {
			return nil, nil
		}
		var keys []string
		for _, one := range pod.Status.PodIPs {
			if ip, err := netip.ParseAddr(one.IP); err == nil {
				keys = append(keys, podKey(pod.Namespace, ip))
			}
		}
		return keys, nil
	}})
}

func podKey(namespace string, ip netip.Addr) string { return namespace + "/" + ip.String() }

// hasPod reports whether a pod of a namespace has an address.
func (w *watch) hasPod(namespace string, ip netip.Addr) bool {
	keys, err := w.pods.IndexKeys(byAddress, podKey(namespace, ip))
	return err == nil && len(keys) > 0
}

// slim removes the fields of an object that names and addresses do not depend on: there are many objects, and clients
// put much into their metadata.
func slim(o any) (any, error) {
	m, err := meta.Accessor(o)
	if err != nil {
		return o, nil // a DeletedFinalStateUnknown of an outage
	}
	m.SetManagedFields(nil)
	m.SetAnnotations(nil)
	m.SetOwnerReferences(nil)
	switch o := o.(type) {
	case *discoveryv1.EndpointSlice:
		if name := o.Labels[discoveryv1.LabelServiceName]; name != "" {
			o.Labels = map[string]string{discoveryv1.LabelServiceName: name}
		}
		for i := range o.Endpoints {
			e := &o.Endpoints[i]
			o.Endpoints[i] = discoveryv1.Endpoint{Addresses: e.Addresses, Hostname: e.Hostname,
				Conditions: discoveryv1.EndpointConditions{Ready: e.Conditions.Ready}}
		}
	case *corev1.Pod:
		o.Labels = nil
		o.Spec = corev1.PodSpec{HostNetwork: o.Spec.HostNetwork}
		o.Status = corev1.PodStatus{PodIPs: o.Status.PodIPs}
	default:
		m.SetLabels(nil)
	}
	return o, nil
}

func indexByService(o any) ([]string, error) { return []string{serviceOf(o)}, nil }

// serviceOf returns the key of the Service that an EndpointSlice belongs to.
func serviceOf(o any) string {
	if tombstone, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
		o = tombstone.Obj
	}
	slice, ok := o.(metav1.Object)
	if !ok {
		return ""
	}
	return slice.GetNamespace() + "/" + slice.GetLabels()[discoveryv1.LabelServiceName]
}

func keyOf(o any) string {
	key, _ := toolscache.DeletionHandlingMetaNamespaceKeyFunc(o) // informers only have objects with names
	return key
}

func (w *watch) note(key string) {
	w.mu.Lock()
	w.dirty[key] = struct{}{}
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// run syncs the index until ctx ends. It calls ready once, when the index has all objects of the API.
func (w *watch) run(ctx context.Context, ready func()) {
	if !toolscache.WaitFor(ctx, "", w.synced...) {
		return
	}
	w.update()
	ready()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
			w.update()
		}
	}
}

// update recomputes the changed Services.
func (w *watch) update() {
	w.mu.Lock()
	dirty := w.dirty
	w.dirty = map[string]struct{}{}
	w.mu.Unlock()
	for key := range dirty {
		w.compute(key)
	}
	if len(dirty) > 0 {
		w.changed()
	}
}

func (w *watch) compute(key string) {
	namespace, name, _ := strings.Cut(key, "/")
	o, exists, err := w.services.GetByKey(key)
	if err != nil || !exists {
		w.index.put(serviceKey(namespace, name), nil)
		return
	}
	objects, err := w.slices.ByIndex(byService, key)
	if err != nil {
		return // the index exists
	}
	slices := make([]*discoveryv1.EndpointSlice, len(objects))
	for i, one := range objects {
		slices[i] = one.(*discoveryv1.EndpointSlice)
	}
	w.index.put(serviceKey(namespace, name), newService(o.(*corev1.Service), slices))
}
