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
	// certificatePatience limits how long the start waits for certificates.
	certificatePatience = 5 * time.Second
)

// controller follows the API server and keeps the proxy's table up to date.
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
	published  coreinformers.ServiceInformer // only watches Options.PublishService; nil without one
	slices     cache.SharedIndexInformer
	classes    *classes
	synced     []cache.DoneChecker
	statuses   *workqueue.Queue[types.NamespacedName]
	secrets    *secrets
	defaultTLS *certificate // nil selects the self-signed one

	routing   *routing   // only for the worker goroutine
	upstreams *upstreams // only for the worker goroutine

	wake  chan struct{} // capacity 1: there are changes
	mu    sync.Mutex
	dirty changes
}

// changes are objects to process again.
type changes struct {
	ingresses map[types.NamespacedName]bool
	services  map[types.NamespacedName]bool
	secrets   map[types.NamespacedName]bool
	all       bool // all Ingresses, because the served ones may have changed
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
	c.routing = newRouting(c.upstreams, c.secrets, o.HostPerNamespace)
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
	if key := o.PublishService; key.Name != "" { // may be in any namespace
		c.published = c.informers(informer.Options{Namespace: key.Namespace, Tweak: func(l *metav1.ListOptions) {
			l.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, key.Name).String()
		}}).Core().V1().Services()
	}
	return c
}

// start follows the API server until ctx ends. wait then waits for all goroutines.
func (c *controller) start(ctx context.Context) (wait func(), err error) {
	if err := c.follow(); err != nil {
		return nil, err
	}
	if c.options.CreateClass {
		if err := createClass(ctx, c.client, c.options); err != nil {
			return nil, fmt.Errorf("create IngressClass %s: %w", c.options.ClassName, err)
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

// follow registers the event handlers of all informers.
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
			UpdateFunc: func(before, after any) { noted(before); noted(after) }, // a slice may move to another Service
			DeleteFunc: func(o any) {
				if tombstone, ok := o.(cache.DeletedFinalStateUnknown); ok {
					o = tombstone.Obj
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
	default: // the worker will process it anyway
	}
}

// fill returns when the first table is in place, with its certificates. It returns false if ctx ended before.
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
		case <-late.C(): // a Secret without permission, or a server that does not answer
			return true
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// work applies changes until ctx ends.
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

// apply updates the table with all recorded changes.
func (c *controller) apply() {
	c.mu.Lock()
	d := c.dirty
	c.dirty = noChanges()
	c.mu.Unlock()
	began := c.options.Clock.Now()
	if d.all {
		list, _ := c.ingresses.Lister().List(labels.Everything()) // from the cache
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
			c.routing.reconsider(certificate.users)
		}
	}
	c.proxy.table.Store(c.routing.commit())
	if d.all {
		for key := range c.routing.entries {
			c.statuses.Add(key)
		}
	}
	for _, warning := range c.routing.warnings() {
		c.recorder.Event(warning.ingress, corev1.EventTypeWarning, warning.reason, warning.message)
	}
	c.metrics.ingresses.Set(float64(len(c.routing.entries)))
	c.metrics.rebuild.Observe(c.options.Clock.Since(began).Seconds())
}

// take updates the routing with the current state of an Ingress.
func (c *controller) take(key types.NamespacedName) {
	ingress, err := c.ingresses.Lister().Ingresses(key.Namespace).Get(key.Name)
	former := c.routing.entries[key]
	if err != nil || !c.classes.serves(ingress) {
		if former != nil {
			c.routing.remove(key)
		}
		return
	}
	c.statuses.Add(key)
	if former != nil && former.ingress.UID == ingress.UID && former.ingress.Generation == ingress.Generation &&
		sameSettings(former, ingress) {
		former.ingress = ingress // its status changed
		return
	}
	c.routing.set(ingress)
}

func sameSettings(e *entry, ingress *networkingv1.Ingress) bool {
	s, warnings := parseSettings(ingress.Annotations)
	_, before := parseSettings(e.ingress.Annotations)
	return s == *e.settings && few(warnings) == few(before)
}

// resolve updates an upstream's endpoints.
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
	before := u.now.Load().rejected
	u.update(service, all)
	if u.now.Load().rejected != before {
		c.routing.reconsider(u.users)
	}
}

// served returns the Ingresses of this controller.
func (c *controller) served() []*networkingv1.Ingress {
	list, _ := c.ingresses.Lister().List(labels.Everything()) // from the cache
	var ours []*networkingv1.Ingress
	for _, ingress := range list {
		if c.classes.serves(ingress) {
			ours = append(ours, ingress)
		}
	}
	return ours
}

// certificateFor returns the certificate for a name that a client requests: the one of its Ingress, if it is valid for
// the name, else the default one, as in ingress-nginx. So a Secret does not affect other hosts.
func (c *controller) certificateFor(name string, own *certificatePair) *certificatePair {
	if t := c.proxy.table.Load(); t != nil {
		if configured := t.certificate(name); configured != nil {
			if pair := configured.covering(name); pair != nil {
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
