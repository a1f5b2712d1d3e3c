// Package controller is what every controller is made of: a name, the informers it listens
// to, and one level-based function.
//
// Reconcile gets a key and nothing else. The key never describes an event, only the place to
// look at: the function reads the current state from its listers, compares it with the spec,
// and does what is missing. It may be called again at any moment, without a reason, by another
// process, or after a crash halfway; it must converge to the same state. An error means "again,
// later", with exponential back-off per key, in real time.
//
// The package also holds what such functions share: adoption and release by owner reference
// and selector (Claim), protection against a cache that does not show our own writes yet
// (Memory, and Settled, with which a reconciliation begins), waking the owners of objects that
// change (Dependents), and reading a pod's readiness.
//
// A controller is built by a constructor that takes an Env. It must not depend on state that
// a restart would lose, and must read the time from Env.Clock alone.
package controller

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/internal/client/informer"
	"github.com/coxswain-dev/coxswain/internal/client/workqueue"
	"github.com/coxswain-dev/coxswain/internal/clock/quiescence"
	"github.com/coxswain-dev/coxswain/internal/clock/virtualtime"
)

// Env is what a controller is built from. All fields are safe for concurrent use, and shared
// by all controllers of the process.
type Env struct {
	// Client and Metadata return the clients of the controller's account, and make them at the first call: a clientset
	// has sixty clients, and most controllers never make a request in the life of a control plane for a test. A
	// controller keeps the functions, and calls them where it makes a request.
	Client   func() kubernetes.Interface
	Metadata func() metadata.Interface
	// Reader is the client of the shared Informers. A controller uses it for an informer of its own, because Client has
	// the rights of the controller's account, which may not include listing the objects.
	Reader kubernetes.Interface
	// Informers are started after every controller has been built, and stopped after the
	// last has ended.
	Informers *informer.Factory
	// Recorder returns the recorder of events that name the component as their source.
	Recorder func(component string) record.EventRecorder
	Clock    clock.WithTicker
	Log      *slog.Logger
	// RootCA has the PEM certificates that authenticate the API server; empty means the system's.
	RootCA []byte
	// QueueMetrics may be nil.
	QueueMetrics *workqueue.Metrics
	// Settings are set by flags that have kube-controller-manager's names.
	Settings Settings
	// Workers is how many keys of the named controller are reconciled at once.
	Workers func(name string) int
}

// Reconcile brings the cluster one step nearer to what the object behind key asks for.
// Calls for the same key never overlap.
type Reconcile func(ctx context.Context, key string) error

// ErrRequeue is returned by Reconcile when nothing failed but the key must be reconciled again
// after its back-off, because no watch event will announce that there is more to do.
var ErrRequeue = errors.New("not done yet")

// Controller is one running controller. Its methods are safe for concurrent use, except that
// Watch, NeedsSync, AddRunnable, AddInformers and AddProbe must be called before Start.
type Controller struct {
	Name string
	Log  *slog.Logger
	// Debug, if not nil, is served under /debug/controllers/ by the controller's name.
	Debug     http.Handler
	queue     *workqueue.Queue[string]
	reconcile Reconcile
	synced    []cache.DoneChecker
	runnables []func(context.Context)
	informers []*informer.Factory // its own
	probes    []quiescence.Probe
	started   chan struct{}
	running   sync.WaitGroup
}

const (
	minBackoff = 5 * time.Millisecond
	maxBackoff = 5 * time.Minute
)

// New returns a controller that calls reconcile for each key that is enqueued.
func New(env *Env, name string, reconcile Reconcile) *Controller {
	return NewWithBackoff(env, name, reconcile, minBackoff, maxBackoff)
}

// NewWithBackoff is New with other bounds for the delay after an error, which is real time.
func NewWithBackoff(env *Env, name string, reconcile Reconcile, least, most time.Duration) *Controller {
	c := &Controller{
		Name:      name,
		Log:       env.Log.With("controller", name),
		reconcile: reconcile,
		started:   make(chan struct{}),
	}
	c.queue = workqueue.New(workqueue.Options{
		Name: name, Workers: env.Workers(name), MinRetry: least, MaxRetry: most, Clock: env.Clock,
		Metrics: env.QueueMetrics,
	}, c.work)
	return c
}

// Handler enqueues keys when an object changes. Nil functions are ignored.
type Handler[T metav1.Object] struct {
	Add    func(obj T)
	Update func(old, obj T)
	// Delete gets the last known state of the object, which may be older than its last one.
	Delete func(obj T)
}

// Watch registers a handler with an informer. Work begins when the handler has seen every object
// of the informer's first list.
func Watch[T metav1.Object](c *Controller, informer cache.SharedIndexInformer, h Handler[T]) {
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if o, ok := obj.(T); ok && h.Add != nil {
				h.Add(o)
			}
		},
		UpdateFunc: func(old, obj any) {
			before, ok1 := old.(T)
			after, ok2 := obj.(T)
			// A relist announces objects that did not change.
			if ok1 && ok2 && h.Update != nil && before.GetResourceVersion() != after.GetResourceVersion() {
				h.Update(before, after)
			}
		},
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			if o, ok := obj.(T); ok && h.Delete != nil {
				h.Delete(o)
			}
		},
	})
	if err != nil {
		panic("controller: " + c.Name + " listens to an informer that has been stopped: " + err.Error())
	}
	c.synced = append(c.synced, registration.HasSyncedChecker())
}

// AddRunnable adds a function that Start runs beside the workers. It must return when its context ends.
func (c *Controller) AddRunnable(run func(ctx context.Context)) {
	c.runnables = append(c.runnables, run)
}

// AddInformers has informers of the controller's own run as long as it does.
func (c *Controller) AddInformers(own *informer.Factory) { c.informers = append(c.informers, own) }

// AddProbe adds work that the controller has besides its keys.
func (c *Controller) AddProbe(p quiescence.Probe) { c.probes = append(c.probes, p) }

// Busy describes work that the controller has left: its caches are not filled or not at a revision, or it has keys. It
// is "" where there is none.
func (c *Controller) Busy(revision int64) string {
	for _, own := range c.informers {
		if work := own.Busy(revision); work != "" {
			return work
		}
	}
	for _, probe := range c.probes {
		if work := probe(revision); work != "" {
			return work
		}
	}
	select {
	case <-c.started:
		return c.queue.Busy()
	default:
		return "its caches are being filled"
	}
}

// NeedsSync delays the workers until synced is done.
func (c *Controller) NeedsSync(synced cache.DoneChecker) { c.synced = append(c.synced, synced) }

// Enqueue requests a reconciliation soon.
func (c *Controller) Enqueue(key string) { c.queue.Add(key) }

// EnqueueObject is Enqueue by namespace and name.
func (c *Controller) EnqueueObject(obj metav1.Object) { c.queue.Add(KeyOf(obj)) }

// EnqueueAfter requests a reconciliation when d has passed on the Env's clock.
func (c *Controller) EnqueueAfter(key string, d time.Duration) { c.queue.AddAfter(key, d) }

// EnqueueAt requests a reconciliation when the wall time of the Env's clock has reached a moment, also if that clock is
// set forwards or back meanwhile (see workqueue.Queue.AddAt). It is for moments that follow from the times of objects;
// EnqueueAfter is for a duration from now.
func (c *Controller) EnqueueAt(key string, t time.Time) { c.queue.AddAt(key, t) }

// EnqueuePeriodic is EnqueueAfter for a key that comes again and again, mostly to find nothing to do. A clock that is
// moved by hand does not stop for it.
func (c *Controller) EnqueuePeriodic(key string, d time.Duration) { c.queue.AddPeriodic(key, d) }

// EnqueueBatched is EnqueueAfter for a delay that is there to handle several changes at once. There is none on a clock
// that is moved by hand.
func (c *Controller) EnqueueBatched(key string, d time.Duration) {
	c.queue.AddAfter(key, virtualtime.Pause(c.queue.Clock, d))
}

// Forget resets the back-off of a key that makes progress.
func (c *Controller) Forget(key string) { c.queue.Forget(key) }

// KeyOf is an object's key: "namespace/name", or "name" for a cluster-scoped object.
func KeyOf(obj metav1.Object) string {
	return cache.ObjectName{Namespace: obj.GetNamespace(), Name: obj.GetName()}.String()
}

// Started is closed once the caches are filled and the workers run.
func (c *Controller) Started() <-chan struct{} { return c.started }

// Start reconciles in the background until ctx ends: once the caches are filled, and with goroutines that exist only
// while there are keys.
func (c *Controller) Start(ctx context.Context) {
	for _, own := range c.informers {
		own.StartWithContext(ctx)
	}
	for _, run := range c.runnables {
		c.running.Go(func() { run(ctx) })
	}
	c.running.Go(func() {
		if cache.WaitFor(ctx, "", c.synced...) {
			c.queue.Start(ctx)
			close(c.started)
		}
	})
}

// Wait returns when the context of Start has ended, and all that it began has too.
func (c *Controller) Wait() {
	c.running.Wait()
	c.queue.Wait()
	for _, own := range c.informers {
		own.Shutdown()
	}
}

// Run is Start and Wait.
func (c *Controller) Run(ctx context.Context) {
	c.Start(ctx)
	<-ctx.Done()
	c.Wait()
}

func (c *Controller) work(ctx context.Context, key string) {
	if ctx.Err() != nil {
		return
	}
	err := c.reconcile(ctx, key)
	switch {
	case err == nil:
		c.queue.Forget(key)
		return
	case ctx.Err() != nil:
		return
	case errors.Is(err, ErrRequeue):
	case apierrors.IsConflict(err):
		// Our cache was behind: the next reconciliation will see the newer object.
		c.Log.Debug("cannot reconcile yet: the cache was behind", "key", key, "err", err)
	default:
		retries := c.queue.Retries(key)
		c.Log.Log(ctx, levelOf(retries), "failed to reconcile", "key", key, "retries", retries, "err", err)
	}
	c.queue.Retry(key)
}

// levelOf is the log level of a failure after so many retries: a warning each time their number has doubled, so that
// keys that keep failing do not fill the log.
func levelOf(retries int) slog.Level {
	if retries&(retries-1) == 0 {
		return slog.LevelWarn
	}
	return slog.LevelDebug
}
