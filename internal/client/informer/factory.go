package informer

import (
	"context"
	"log/slog"
	"reflect"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/internalinterfaces"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
)

// Options select the objects that a factory's informers watch.
type Options struct {
	// Namespace limits the informers to one namespace; "" is all. Cluster-scoped kinds need a factory without one.
	Namespace string
	// Tweak, if not nil, may set selectors on all requests.
	Tweak func(*metav1.ListOptions)
	// Transform, if not nil, changes objects before they are stored.
	Transform cache.TransformFunc
	// Log receives repeated failures; slog.Default if nil.
	Log *slog.Logger
}

// Factory implements informers.SharedInformerFactory with the informers of this package. With a fake clientset, as
// tests use it, the informers are client-go's. ForResource finds informers that were requested by type before.
type Factory struct {
	informers.SharedInformerFactory
	options Options
	gate    *gate

	// mu guards tweaks and ours.
	mu     sync.Mutex
	tweaks map[reflect.Type]func(*metav1.ListOptions)
	ours   map[schema.GroupVersionResource]*Informer
}

// NewFactory returns a factory without informers.
func NewFactory(client kubernetes.Interface, o Options) *Factory {
	return &Factory{
		SharedInformerFactory: informers.NewSharedInformerFactoryWithOptions(client, 0,
			informers.WithTransform(o.Transform)),
		options: o, gate: newGate(), tweaks: map[reflect.Type]func(*metav1.ListOptions){},
		ours: map[schema.GroupVersionResource]*Informer{},
	}
}

// Restrict makes the informer of an object's type request only the objects that tweak selects. It must be called
// before that informer is requested.
func (f *Factory) Restrict(example runtime.Object, tweak func(*metav1.ListOptions)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tweaks[reflect.TypeOf(example)] = tweak
}

// StartWithContext implements informers.SharedInformerFactory. It returns when the first informer has a connection,
// or after gatePatience, so that other users of the clientset find that connection too.
func (f *Factory) StartWithContext(ctx context.Context) {
	f.SharedInformerFactory.StartWithContext(ctx)
	f.mu.Lock()
	some := len(f.ours) > 0
	f.mu.Unlock()
	if some {
		f.gate.await(ctx)
	}
}

// InformerFor implements informers.SharedInformerFactory.
func (f *Factory) InformerFor(example runtime.Object,
	construct internalinterfaces.NewInformerFunc) cache.SharedIndexInformer {
	return f.SharedInformerFactory.InformerFor(example,
		func(client kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
			gvr, ok := resourceOf(example)
			if rest := restClient(client); rest != nil && ok {
				s := newSource(rest, gvr, scheme.Codecs.WithoutConversion())
				s.namespace, s.gate = f.options.Namespace, f.gate
				return f.keep(gvr, reflect.TypeOf(example), s)
			}
			return construct(client, resync)
		})
}

func (f *Factory) keep(gvr schema.GroupVersionResource, kind reflect.Type, s source) *Informer {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s.tweak = f.tweaks[kind]; s.tweak == nil {
		s.tweak = f.options.Tweak
	}
	i := newInformer(s, f.options.Log)
	f.ours[gvr] = i
	return i
}

// Existing returns the informer of all objects of a resource; nil if it was not requested before, or watches only a
// part of them.
func (f *Factory) Existing(gvr schema.GroupVersionResource) *Informer {
	f.mu.Lock()
	defer f.mu.Unlock()
	if i := f.ours[gvr]; i != nil && i.source.namespace == "" && i.source.tweak == nil {
		return i
	}
	return nil
}

// Busy describes why an informer's handlers have not seen all changes up to a revision; see Informer.Busy.
func (f *Factory) Busy(revision int64) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, i := range f.ours {
		if work := i.Busy(revision); work != "" {
			return work
		}
	}
	return ""
}

// resourceOf returns the resource of a built-in type.
func resourceOf(example runtime.Object) (gvr schema.GroupVersionResource, ok bool) {
	kinds, _, err := scheme.Scheme.ObjectKinds(example)
	if err != nil || len(kinds) == 0 {
		return gvr, false
	}
	gvr, _ = meta.UnsafeGuessKindToResource(kinds[0])
	return gvr, true
}

// NewMetadata returns an informer of the metadata of a resource's objects: *metav1.PartialObjectMetadata. The
// client must be a real one, which sends requests to a server.
func NewMetadata(client kubernetes.Interface, gvr schema.GroupVersionResource, log *slog.Logger) *Informer {
	s := newSource(restClient(client), gvr, metainternalversion.Codecs.WithoutConversion())
	s.accept, s.list = metadata, metadataList
	return newInformer(s, log)
}
