// Package controller is what every controller is made of: a name, the informers it listens
// to, and one level-based function.
//
// Reconcile gets a key and nothing else. The key never describes an event, only the place to
// look at: the function reads the current state from its listers, compares it with the spec,
// and does what is missing. It may be called again at any moment, without a reason, by another
// process, or after a crash halfway; it must converge to the same state. An error means "again,
// later", with exponential back-off per key.
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
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
)

// Env is what a controller is built from. All fields are safe for concurrent use, and shared
// by all controllers of the process.
type Env struct {
	Client   kubernetes.Interface
	Metadata metadata.Interface
	// Reader is the client of the shared Informers. A controller uses it for an informer of its own, because Client has
	// the rights of the controller's account, which may not include listing the objects.
	Reader kubernetes.Interface
	// Informers are started after every controller has been built, and stopped after the
	// last has ended.
	Informers informers.SharedInformerFactory
	// Recorder returns the recorder of events that name the component as their source.
	Recorder func(component string) record.EventRecorder
	Clock    clock.WithTicker
	Log      *slog.Logger
	// RootCA has the PEM certificates that authenticate the API server; empty means the system's.
	RootCA []byte
	// QueueMetrics may be nil.
	QueueMetrics workqueue.MetricsProvider
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
// Watch and AddRunnable must be called before Run.
type Controller struct {
	Name string
	Log  *slog.Logger
	// Debug, if not nil, is served under /debug/controllers/ by the controller's name.
	Debug     http.Handler
	queue     workqueue.TypedRateLimitingInterface[string]
	reconcile Reconcile
	workers   int
	synced    []cache.DoneChecker
	runnables []func(context.Context)
	started   chan struct{}
}

const (
	minBackoff = 5 * time.Millisecond
	maxBackoff = 5 * time.Minute
)

// New returns a controller that calls reconcile for each key that is enqueued.
func New(env *Env, name string, reconcile Reconcile) *Controller {
	return NewWithBackoff(env, name, reconcile, minBackoff, maxBackoff)
}

// NewWithBackoff is New with other bounds for the delay after an error.
func NewWithBackoff(env *Env, name string, reconcile Reconcile, least, most time.Duration) *Controller {
	return &Controller{
		Name: name,
		Log:  env.Log.With("controller", name),
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](least, most),
			workqueue.TypedRateLimitingQueueConfig[string]{
				Name: name, Clock: env.Clock, MetricsProvider: env.QueueMetrics,
			}),
		reconcile: reconcile,
		workers:   max(1, env.Workers(name)),
		started:   make(chan struct{}),
	}
}

// Handler enqueues keys when an object changes. Nil functions are ignored.
type Handler[T metav1.Object] struct {
	Add    func(obj T)
	Update func(old, obj T)
	// Delete gets the last known state of the object, which may be older than its last one.
	Delete func(obj T)
}

// Watch registers a handler with an informer. Run waits until the handler has seen every object
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

// AddRunnable adds a function that Run runs beside the workers. It must return when its context ends.
func (c *Controller) AddRunnable(run func(ctx context.Context)) {
	c.runnables = append(c.runnables, run)
}

// NeedsSync delays the workers until synced is done.
func (c *Controller) NeedsSync(synced cache.DoneChecker) { c.synced = append(c.synced, synced) }

// Enqueue requests a reconciliation soon.
func (c *Controller) Enqueue(key string) { c.queue.Add(key) }

// EnqueueObject is Enqueue by namespace and name.
func (c *Controller) EnqueueObject(obj metav1.Object) { c.queue.Add(KeyOf(obj)) }

// EnqueueAfter requests a reconciliation when d has passed on the Env's clock.
func (c *Controller) EnqueueAfter(key string, d time.Duration) { c.queue.AddAfter(key, d) }

// Forget resets the back-off of a key that makes progress.
func (c *Controller) Forget(key string) { c.queue.Forget(key) }

// KeyOf is an object's key: "namespace/name", or "name" for a cluster-scoped object.
func KeyOf(obj metav1.Object) string {
	return cache.ObjectName{Namespace: obj.GetNamespace(), Name: obj.GetName()}.String()
}

// Started is closed once the caches are filled and the workers run.
func (c *Controller) Started() <-chan struct{} { return c.started }

// Run reconciles until ctx ends, and returns when the last worker has.
func (c *Controller) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer c.queue.ShutDown()
	for _, run := range c.runnables {
		wg.Go(func() { run(ctx) })
	}
	if !cache.WaitFor(ctx, "", c.synced...) {
		return
	}
	close(c.started)
	for range c.workers {
		wg.Go(func() {
			for c.next(ctx) {
			}
		})
	}
	<-ctx.Done()
}

func (c *Controller) next(ctx context.Context) bool {
	key, stopped := c.queue.Get()
	if stopped || ctx.Err() != nil {
		return false
	}
	defer c.queue.Done(key)
	err := c.reconcile(ctx, key)
	switch {
	case err == nil:
		c.queue.Forget(key)
		return true
	case ctx.Err() != nil:
		return false
	case errors.Is(err, ErrRequeue):
	case apierrors.IsConflict(err):
		// Our cache was behind: the next reconciliation will see the newer object.
		c.Log.Debug("conflict", "key", key, "error", err)
	default:
		c.Log.Log(ctx, levelOf(c.queue.NumRequeues(key)), "reconcile failed", "key", key, "retries",
			c.queue.NumRequeues(key), "error", err)
	}
	c.queue.AddRateLimited(key)
	return true
}

// levelOf is the log level of a failure after so many retries: a warning each time their number has doubled, so that
// keys that keep failing do not fill the log.
func levelOf(retries int) slog.Level {
	if retries&(retries-1) == 0 {
		return slog.LevelWarn
	}
	return slog.LevelDebug
}
