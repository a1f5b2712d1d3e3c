// Package controller is the frame of every controller: a name, the informers that it watches, and one
// level-based function.
//
// Reconcile gets only a key. The key never describes an event, only the object to look at: the function reads
// the current state from its listers, compares it with the spec, and writes the difference. It may be called
// again at any moment, without a reason, by another process, or after a crash halfway. It must converge to the
// same state. An error means "again, later", with exponential back-off per key, in real time.
//
// The package also holds the shared parts of these functions: adoption and release by owner reference and
// selector (Claim), expectations that protect against a cache that does not show our own writes yet
// (OwnerExpectations, and SatisfiedOwner, the first call of a reconciliation), enqueueing the owners of changed
// objects (Dependents), and reading a pod's conditions.
//
// A controller is built by a constructor that takes an Env. It must not depend on state that a restart would
// lose, and must read the time from Env.Clock only.
package controller

import (
	"context"
	"crypto/x509"
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

// Env holds the dependencies of a controller. All fields are safe for concurrent use, and shared by all
// controllers of the process.
type Env struct {
	// Client and Metadata return the clients of the controller's account, and create them at the first call. A
	// clientset contains sixty clients, and most controllers never make a request in a test's short-lived
	// control plane. So a controller keeps the functions, and calls them where it makes a request.
	Client   func() kubernetes.Interface
	Metadata func() metadata.Interface
	// Reader is the client of the shared Informers. A controller uses it for informers of its own: Client has
	// the rights of the controller's account, which may not include listing the objects.
	Reader kubernetes.Interface
	// Informers are started after all controllers have been built, and stopped after all controllers have
	// ended.
	Informers *informer.Factory
	// Recorder returns a recorder of Events with the component as their source.
	Recorder func(component string) record.EventRecorder
	Clock    clock.WithTicker
	Log      *slog.Logger
	// RootCA has the PEM certificates that authenticate the API server; the system's if it is empty.
	RootCA []byte
	// ServerCertificate, if not nil, returns the certificate that the API server presents now; nil over a connection
	// without TLS.
	ServerCertificate func(context.Context) (*x509.Certificate, error)
	// QueueMetrics may be nil.
	QueueMetrics *workqueue.Metrics
	// Metrics may be nil.
	Metrics *Metrics
	// Settings are set by flags with the names of kube-controller-manager's.
	Settings Settings
	// Workers returns how many keys the named controller reconciles concurrently.
	Workers func(name string) int
}

// Reconcile brings the cluster one step nearer to the desired state of the object with the key. Calls for the
// same key never overlap.
type Reconcile func(ctx context.Context, key string) error

// ErrRequeue is returned by Reconcile without a failure if the key must be reconciled again after its back-off,
// because no watch event will announce the remaining work.
var ErrRequeue = errors.New("not done yet")

// Controller is a running controller. Its methods are safe for concurrent use, except that Watch, NeedsSync,
// AddRunnable, AddInformers and AddProbe must be called before Start: they change fields that are read without
// a lock from then on.
type Controller struct {
	Name string
	Log  *slog.Logger
	// Debug, if set, is served under /debug/controllers/ by the controller's name.
	Debug     http.Handler
	queue     *workqueue.Queue[string]
	reconcile Reconcile
	synced    []cache.DoneChecker
	runnables []func(context.Context)
	informers []*informer.Factory // of this controller alone; Start starts and Wait stops them
	probes    []quiescence.Probe
	started   chan struct{}  // closed by Start once the caches are filled and the workers run
	running   sync.WaitGroup // the goroutines of Start, and the runnables
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
func NewWithBackoff(env *Env, name string, reconcile Reconcile, minRetry, maxRetry time.Duration) *Controller {
	c := &Controller{
		Name:      name,
		Log:       env.Log.With("controller", name),
		reconcile: reconcile,
		started:   make(chan struct{}),
	}
	c.queue = workqueue.New(workqueue.Options{
		Name: name, Workers: env.Workers(name), MinRetry: minRetry, MaxRetry: maxRetry, Clock: env.Clock,
		Metrics: env.QueueMetrics,
	}, c.work)
	return c
}

// Handler enqueues keys when an object changes. Nil functions are ignored. The functions run on a goroutine of
// the informer and must not block.
type Handler[T metav1.Object] struct {
	Add    func(obj T)
	Update func(old, obj T)
	// Delete gets the last state in the cache, which is older than the object's final state if the watch missed
	// events.
	Delete func(obj T)
}

// Watch registers a handler with an informer. The workers start once the handler has seen every object of the
// informer's first list.
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
			if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = tombstone.Obj
			}
			if o, ok := obj.(T); ok && h.Delete != nil {
				h.Delete(o)
			}
		},
	})
	if err != nil {
		panic("controller: " + c.Name + " watches an informer that has been stopped: " + err.Error())
	}
	c.synced = append(c.synced, registration.HasSyncedChecker())
}

// AddRunnable adds a function that Start runs beside the workers. It must return when its context ends; Wait
// waits for it.
func (c *Controller) AddRunnable(run func(ctx context.Context)) {
	c.runnables = append(c.runnables, run)
}

// AddInformers adds informers of the controller's own, which Start starts and Wait stops.
func (c *Controller) AddInformers(own *informer.Factory) { c.informers = append(c.informers, own) }

// AddProbe adds a probe for work of the controller beside its keys.
func (c *Controller) AddProbe(p quiescence.Probe) { c.probes = append(c.probes, p) }

// Busy describes work that is left: caches that are not filled or not at the revision, or keys in the queue. It
// returns "" if the controller is idle.
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

// NeedsSync delays the start of the workers until synced is done.
func (c *Controller) NeedsSync(synced cache.DoneChecker) { c.synced = append(c.synced, synced) }

// Enqueue adds a key for reconciliation as soon as a worker is free.
func (c *Controller) Enqueue(key string) { c.queue.Add(key) }

// EnqueueObject enqueues an object's key.
func (c *Controller) EnqueueObject(obj metav1.Object) { c.queue.Add(KeyOf(obj)) }

// EnqueueAfter enqueues a key when d has passed on the Env's clock.
func (c *Controller) EnqueueAfter(key string, d time.Duration) { c.queue.AddAfter(key, d) }

// EnqueueAt enqueues a key when the wall time of the Env's clock has reached t, even if that clock is set
// forwards or back meanwhile (see workqueue.Queue.AddAt). It is for times that are computed from times in
// objects; EnqueueAfter is for a duration from now.
func (c *Controller) EnqueueAt(key string, t time.Time) { c.queue.AddAt(key, t) }

// EnqueuePeriodic is EnqueueAfter for a key that is enqueued periodically, mostly without work to do. A
// simulated clock does not stop for it.
func (c *Controller) EnqueuePeriodic(key string, d time.Duration) { c.queue.AddPeriodic(key, d) }

// EnqueueBatched is EnqueueAfter for a delay that batches changes. A simulated clock has no such delay.
func (c *Controller) EnqueueBatched(key string, d time.Duration) {
	c.queue.AddAfter(key, virtualtime.Pause(c.queue.Clock, d))
}

// Forget resets the back-off of a key that makes progress.
func (c *Controller) Forget(key string) { c.queue.Forget(key) }

// KeyOf returns an object's key: "namespace/name", or "name" for a cluster-scoped object.
func KeyOf(obj metav1.Object) string {
	return cache.ObjectName{Namespace: obj.GetNamespace(), Name: obj.GetName()}.String()
}

// Started returns a channel that is closed once the caches are filled and the workers run.
func (c *Controller) Started() <-chan struct{} { return c.started }

// Start reconciles in the background until ctx ends, once the caches are filled. Workers are goroutines that
// exist only while there are keys. Call Wait afterwards.
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

// Wait returns after the context of Start has ended and all its goroutines have returned. It then stops the
// controller's own informers.
func (c *Controller) Wait() {
	c.running.Wait()
	c.queue.Wait()
	for _, own := range c.informers {
		own.Shutdown()
	}
}

// Run calls Start and, when ctx has ended, Wait.
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
		// The cache was stale: the next reconciliation will see the newer object.
		c.Log.Debug("failed to reconcile with a stale cache, will retry", "key", key, "err", err)
	default:
		retries := c.queue.Retries(key)
		c.Log.Log(ctx, levelOf(retries), "failed to reconcile", "key", key, "retries", retries, "err", err)
	}
	c.queue.Retry(key)
}

// levelOf returns the log level of a failure after some retries: a warning whenever their number has doubled,
// so that keys that keep failing do not fill the log.
func levelOf(retries int) slog.Level {
	if retries&(retries-1) == 0 {
		return slog.LevelWarn
	}
	return slog.LevelDebug
}
