package ingress

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	networkinginformers "k8s.io/client-go/informers/networking/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/coxswain-dev/coxswain/internal/client/events"
	"github.com/coxswain-dev/coxswain/internal/client/informer"
	"github.com/coxswain-dev/coxswain/internal/client/workqueue"
)

const (
	// byServiceIndex finds the EndpointSlices of a Service.
	byServiceIndex = "service"
	// certificatePatience bounds how long the start waits for certificates.
	certificatePatience = 5 * time.Second
)

// controller follows the server and keeps the proxy's table up to date.
type controller struct {
	options  Options
	client   kubernetes.Interface
	proxy    *proxy
	metrics  *metrics
	events   *events.Recorder
	recorder record.EventRecorder

	factories  []*informer.Factory
	ingresses  networkinginformers.IngressInformer
	services   coreinformers.ServiceInformer
	published  coreinformers.ServiceInformer // sees Options.PublishService only; nil without one
	slices     cache.SharedIndexInformer
	classes    *classes
	synced     []cache.DoneChecker
	statuses   *workqueue.Queue[types.NamespacedName]
	secrets    *secrets
	defaultTLS *certificate // nil for the self-signed one

	book      *book      // of the goroutine that works
	upstreams *upstreams // the same

	wake  chan struct{} // of capacity 1: something is dirty
	mu    sync.Mutex
	dirty changes
}

// changes are what has to be looked at anew.
type changes struct {
	ingresses map[types.NamespacedName]bool
	services  map[types.NamespacedName]bool
	secrets   map[types.NamespacedName]bool
	all       bool // which Ingresses are served
}

func noChanges() changes {
	return changes{ingresses: map[types.NamespacedName]bool{}, services: map[types.NamespacedName]bool{},
		secrets: map[types.NamespacedName]bool{}}
}

func newController(ctx context.Context, client kubernetes.Interface, o Options, p *proxy, m *metrics) *controller {
	c := &controller{
		options: o, client: client, proxy: p, metrics: m, upstreams: newUpstreams(), dirty: noChanges(),
		wake: make(chan struct{}, 1),
	}
	c.secrets = newSecrets(ctx, client, o.Log, func(key types.NamespacedName) {
		c.note(func(d *changes) { d.secrets[key] = true })
	})
	c.events = events.NewRecorder(func(string) kubernetes.Interface { return client }, o.Clock, o.Log)
	c.recorder = c.events.As("coxswain-ingress")
	c.book = newBook(c.upstreams, c.secrets, o.HostPerNamespace)
	c.upstreams.resolve = c.resolve
	c.statuses = workqueue.New(workqueue.Options{Name: "ingress-status", Workers: 4, MinRetry: 50 * time.Millisecond,
		MaxRetry: time.Minute, Clock: o.Clock}, c.publish)
	if o.DefaultCertificate.Name != "" {
		c.defaultTLS = c.secrets.hold(o.DefaultCertificate, types.NamespacedName{})
	}
	watched := c.informers(informer.Options{Namespace: o.WatchNamespace})
	c.ingresses = watched.Networking().V1().Ingresses()
	c.services = watched.Core().V1().Services()
	c.slices = watched.Discovery().V1().EndpointSlices().Informer()
	everywhere := c.informers(informer.Options{})
	c.classes = &classes{everywhere.Networking().V1().IngressClasses(), o.ClassName, o.ControllerName}
	if key := o.PublishService; key.Name != "" { // in any namespace
		c.published = c.informers(informer.Options{Namespace: key.Namespace, Tweak: func(l *metav1.ListOptions) {
			l.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, key.Name).String()
		}}).Core().V1().Services()
	}
	return c
}

// start follows the server. wait returns when that has ended, after its context.
func (c *controller) start(ctx context.Context) (wait func(), err error) {
	if err := c.follow(); err != nil {
		return nil, err
	}
	if c.options.CreateClass {
		if err := createClass(ctx, c.client, c.options); err != nil {
			return nil, fmt.Errorf("IngressClass %s: %w", c.options.ClassName, err)
		}
	}
	for _, f := range c.factories {
		f.StartWithContext(ctx)
	}
	c.events.Start(ctx)
	c.statuses.Start(ctx)
	return func() {
		for _, f := range c.factories {
			f.Shutdown()
		}
		c.secrets.watches.Wait()
		c.events.Wait()
		c.statuses.Wait()
	}, nil
}

// informers returns a factory that is started with the others.
func (c *controller) informers(o informer.Options) *informer.Factory {
	o.Log = c.options.Log
	f := informer.NewFactory(c.client, o)
	c.factories = append(c.factories, f)
	return f
}

// follow notes what changes.
func (c *controller) follow() error {
	if err := c.slices.AddIndexers(cache.Indexers{byServiceIndex: func(o any) ([]string, error) {
		return []string{serviceOfSlice(o).String()}, nil
	}}); err != nil {
		return err
	}
	notes := map[cache.SharedIndexInformer]func(d *changes, o any){
		c.ingresses.Informer():        func(d *changes, o any) { d.ingresses[keyOf(o)] = true },
		c.services.Informer():         func(d *changes, o any) { d.services[keyOf(o)] = true },
		c.slices:                      func(d *changes, o any) { d.services[serviceOfSlice(o)] = true },
		c.classes.informer.Informer(): func(d *changes, _ any) { d.all = true },
	}
	if c.published != nil {
		notes[c.published.Informer()] = func(d *changes, _ any) { d.all = true }
	}
	for i, note := range notes {
		noted := func(o any) { c.note(func(d *changes) { note(d, o) }) }
		registration, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    noted,
			UpdateFunc: func(before, after any) { noted(before); noted(after) }, // a slice may go to another Service
			DeleteFunc: func(o any) {
				if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
					o = gone.Obj
				}
				noted(o)
			},
		})
		if err != nil {
			return err
		}
		c.synced = append(c.synced, registration.HasSyncedChecker())
	}
	return nil
}

func keyOf(o any) types.NamespacedName {
	switch o := o.(type) {
	case *networkingv1.Ingress:
		return types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
	case *corev1.Service:
		return types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
	}
	return types.NamespacedName{}
}

func serviceOfSlice(o any) types.NamespacedName {
	s, ok := o.(*discoveryv1.EndpointSlice)
	if !ok {
		return types.NamespacedName{}
	}
	return types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
}

func (c *controller) note(change func(*changes)) {
	c.mu.Lock()
	change(&c.dirty)
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default: // the worker will see it
	}
}

// fill returns when the first table is in place, with its certificates; false where ctx has ended before.
func (c *controller) fill(ctx context.Context) bool {
	if !cache.WaitFor(ctx, "", c.synced...) {
		return false
	}
	c.apply()
	late := c.options.Clock.NewTimer(certificatePatience)
	defer late.Stop()
	for _, certificate := range c.secrets.byKey {
		select {
		case <-certificate.seen:
		case <-late.C(): // a Secret that may not be read, or a server that does not answer
			return true
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// work takes up changes until ctx ends.
func (c *controller) work(ctx context.Context) {
	for {
		select {
		case <-c.wake:
			c.apply()
		case <-ctx.Done():
			return
		}
	}
}

// apply brings the table up to date with everything that has been noted.
func (c *controller) apply() {
	c.mu.Lock()
	d := c.dirty
	c.dirty = noChanges()
	c.mu.Unlock()
	began := c.options.Clock.Now()
	if d.all {
		list, _ := c.ingresses.Lister().List(labels.Everything()) // from memory
		for _, ingress := range list {
			d.ingresses[types.NamespacedName{Namespace: ingress.Namespace, Name: ingress.Name}] = true
		}
	}
	for key := range d.services {
		for u := range c.upstreams.byService[key] {
			c.resolve(u)
		}
	}
	for key := range d.ingresses {
		c.take(key)
	}
	for key := range d.secrets {
		if certificate := c.secrets.byKey[key]; certificate != nil {
			c.book.reconsider(certificate.users)
		}
	}
	c.proxy.table.Store(c.book.commit())
	if d.all {
		for key := range c.book.entries {
			c.statuses.Add(key)
		}
	}
	for _, complaint := range c.book.complaints() {
		c.recorder.Event(complaint.ingress, corev1.EventTypeWarning, complaint.reason, complaint.message)
	}
	c.metrics.ingresses.Set(float64(len(c.book.entries)))
	c.metrics.rebuild.Observe(c.options.Clock.Since(began).Seconds())
}

// take takes up what an Ingress is by now.
func (c *controller) take(key types.NamespacedName) {
	ingress, err := c.ingresses.Lister().Ingresses(key.Namespace).Get(key.Name)
	known := c.book.entries[key]
	if err != nil || !c.classes.serves(ingress) {
		if known != nil {
			c.book.remove(key)
		}
		return
	}
	c.statuses.Add(key)
	if known != nil && known.ingress.UID == ingress.UID && known.ingress.Generation == ingress.Generation &&
		sameSettings(known, ingress) {
		known.ingress = ingress // its status is another
		return
	}
	c.book.set(ingress)
}

func sameSettings(e *entry, ingress *networkingv1.Ingress) bool {
	s, complaints := parseSettings(ingress.Annotations)
	_, before := parseSettings(e.ingress.Annotations)
	return s == *e.settings && few(complaints) == few(before)
}

// resolve looks up an upstream's endpoints.
func (c *controller) resolve(u *upstream) {
	service, err := c.services.Lister().Services(u.key.namespace).Get(u.key.service)
	if err != nil {
		service = nil
	}
	objects, _ := c.slices.GetIndexer().ByIndex(byServiceIndex, u.key.serviceKey().String()) // the index exists
	all := make([]*discoveryv1.EndpointSlice, 0, len(objects))
	for _, o := range objects {
		all = append(all, o.(*discoveryv1.EndpointSlice))
	}
	before := u.now.Load().refused
	u.update(service, all)
	if u.now.Load().refused != before {
		c.book.reconsider(u.users)
	}
}

// served are the Ingresses of this controller.
func (c *controller) served() []*networkingv1.Ingress {
	list, _ := c.ingresses.Lister().List(labels.Everything()) // from memory
	var ours []*networkingv1.Ingress
	for _, ingress := range list {
		if c.classes.serves(ingress) {
			ours = append(ours, ingress)
		}
	}
	return ours
}

// certificateFor chooses the certificate of a name that a client asks for: that which its Ingress names, if it is valid
// for the name, and otherwise the default one, as ingress-nginx does. So a Secret says nothing about other hosts.
func (c *controller) certificateFor(name string, own *certificatePair) *certificatePair {
	if t := c.proxy.table.Load(); t != nil {
		if of := t.certificate(name); of != nil {
			if pair := of.covering(name); pair != nil {
				return pair
			}
		}
	}
	if c.defaultTLS != nil {
		if i := c.defaultTLS.now.Load(); i != nil {
			return i.pair
		}
	}
	return own
}
