// Package informer keeps copies of a server's objects in memory, at the price of one goroutine for each kind.
//
// An informer of client-go has seven goroutines, and two more for each handler, so that a handler may block.
// Handlers here only put keys into work queues and update small indexes. This package therefore reads a watch,
// updates the copy and calls the handlers in one goroutine, which is blocked in the read of the response nearly all
// the time. All else is as in client-go: an Informer is a cache.SharedIndexInformer, a Factory an
// informers.SharedInformerFactory, and the listers are client-go's.
//
// # Concurrency
//
// RunWithContext is the informer's goroutine: it makes all requests, and it alone changes the store. It holds the
// informer's lock from a change of the store to the return of the last handler, so AddEventHandler sees a store
// that agrees with the calls which the other handlers have had. Readers of the store do not take that lock: a
// lister may return an object shortly before the handlers are called for it.
//
//	informer.go  the copy and its handlers
//	reflect.go   the loop that keeps the copy up to date: list, watch, and the recovery from errors
//	source.go    the requests, and the decoding of their answers
//	factory.go   informers of built-in kinds, shared by their users (groups.go: by API group)
//
// Handlers must not block, and must not add or remove handlers: the lock is held when they are called.
package informer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
)

// Informer is a cache.SharedIndexInformer without resyncs. Its methods are safe for concurrent use. Its transform,
// error handler and source must be set before it runs.
type Informer struct {
	source source
	log    *slog.Logger
	store  cache.Indexer
	// synced is closed when the handlers have seen the first list.
	synced chan struct{}
	// revision is the latest one whose changes all handlers have seen, or that of a later bookmark. Only the
	// informer's goroutine stores it, after the handlers have returned. 0 if the server's versions are no numbers.
	revision atomic.Int64
	version  atomic.Value // the same as a string, as the server writes it; "" before the first list
	resting  atomic.Bool  // set while a long pause after a failure lasts: the informer then does not count as busy
	begun    atomic.Bool  // RunWithContext was called; it never becomes false again
	ended    atomic.Bool  // RunWithContext has returned

	// onError is called in the informer's goroutine; nil if errors are only logged.
	onError func(error)

	// mu is held while the store changes and the handlers are called for the change.
	mu        sync.Mutex
	transform cache.TransformFunc
	handlers  []*registration
}

var _ cache.SharedIndexInformer = (*Informer)(nil)

func newInformer(s source, log *slog.Logger) *Informer {
	i := &Informer{
		source: s, log: cmp.Or(log, slog.Default()), synced: make(chan struct{}),
		store: cache.NewIndexer(cache.DeletionHandlingMetaNamespaceKeyFunc,
			cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}),
	}
	i.version.Store("")
	return i
}

// registration is one handler. It has synced when the informer has: a handler that is added later is called for all
// objects before AddEventHandler returns.
type registration struct {
	cache.ResourceEventHandler
	informer *Informer
}

// HasSynced implements cache.ResourceEventHandlerRegistration.
func (r *registration) HasSynced() bool { return r.informer.HasSynced() }

// HasSyncedChecker implements cache.ResourceEventHandlerRegistration.
func (r *registration) HasSyncedChecker() cache.DoneChecker { return r.informer.HasSyncedChecker() }

// AddEventHandler implements cache.SharedInformer. The handler is called in the informer's goroutine. For the
// objects that the store has already it is called here, in the caller's goroutine, before AddEventHandler returns.
func (i *Informer) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	if i.IsStopped() {
		return nil, errors.New("informer: it has been stopped")
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	r := &registration{h, i}
	i.handlers = append(i.handlers, r)
	for _, o := range i.store.List() {
		h.OnAdd(o, true)
	}
	return r, nil
}

// AddEventHandlerWithResyncPeriod implements cache.SharedInformer. There are no resyncs.
func (i *Informer) AddEventHandlerWithResyncPeriod(h cache.ResourceEventHandler, _ time.Duration) (
	cache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandler(h)
}

// AddEventHandlerWithOptions implements cache.SharedInformer. There are no resyncs.
func (i *Informer) AddEventHandlerWithOptions(h cache.ResourceEventHandler, _ cache.HandlerOptions) (
	cache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandler(h)
}

// RemoveEventHandler implements cache.SharedInformer. The handler is not called again after it returns.
func (i *Informer) RemoveEventHandler(handle cache.ResourceEventHandlerRegistration) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.handlers = slices.DeleteFunc(i.handlers, func(r *registration) bool { return r == handle })
	return nil
}

// GetStore implements cache.SharedInformer.
func (i *Informer) GetStore() cache.Store { return i.store }

// GetIndexer implements cache.SharedIndexInformer.
func (i *Informer) GetIndexer() cache.Indexer { return i.store }

// AddIndexers implements cache.SharedIndexInformer.
func (i *Informer) AddIndexers(indexers cache.Indexers) error { return i.store.AddIndexers(indexers) }

// GetController implements cache.SharedInformer.
func (i *Informer) GetController() cache.Controller { return nil }

// SetTransform implements cache.SharedInformer.
func (i *Informer) SetTransform(f cache.TransformFunc) error {
	if i.begun.Load() {
		return errors.New("informer: it has been started")
	}
	i.transform = f
	return nil
}

// OnError sets a function that is called after a list or a watch has failed and before the next try. The informer's
// goroutine calls it, so it must not block. OnError must be called before the informer starts.
func (i *Informer) OnError(f func(error)) { i.onError = f }

var errHandler = errors.New("informer: errors go to OnError")

// SetWatchErrorHandler implements cache.SharedInformer, and always fails: see OnError.
func (i *Informer) SetWatchErrorHandler(cache.WatchErrorHandler) error { return errHandler }

// SetWatchErrorHandlerWithContext implements cache.SharedInformer, and always fails: see OnError.
func (i *Informer) SetWatchErrorHandlerWithContext(cache.WatchErrorHandlerWithContext) error {
	return errHandler
}

// Run implements cache.SharedInformer.
func (i *Informer) Run(stop <-chan struct{}) { i.RunWithContext(wait.ContextForChannel(stop)) }

// RunWithContext implements cache.SharedInformer. An informer runs once.
func (i *Informer) RunWithContext(ctx context.Context) {
	if i.begun.Swap(true) {
		return
	}
	defer i.ended.Store(true)
	(&reflector{Informer: i}).run(ctx)
}

// IsStopped implements cache.SharedInformer.
func (i *Informer) IsStopped() bool { return i.ended.Load() }

// HasSynced implements cache.SharedInformer. When it is true, the handlers have seen the first list, too.
func (i *Informer) HasSynced() bool {
	select {
	case <-i.synced:
		return true
	default:
		return false
	}
}

// HasSyncedChecker implements cache.SharedInformer.
func (i *Informer) HasSyncedChecker() cache.DoneChecker { return done{i} }

type done struct{ *Informer }

func (d done) Name() string          { return "informer of " + d.source.String() }
func (d done) Done() <-chan struct{} { return d.synced }

// LastSyncResourceVersion implements cache.SharedInformer. Unlike client-go's it is safe for concurrent use, and
// the handlers have seen all changes up to it.
func (i *Informer) LastSyncResourceVersion() string { return i.version.Load().(string) }

// Busy describes why the handlers have not seen all changes up to a revision of the server. It is "" if they have,
// if the informer does not run, and during a long pause after a failure.
func (i *Informer) Busy(revision int64) string {
	if !i.begun.Load() || i.ended.Load() || i.resting.Load() {
		return ""
	}
	if seen := i.revision.Load(); seen < revision {
		return fmt.Sprintf("%s have been seen up to revision %d of %d", &i.source, seen, revision)
	}
	return ""
}

// keep stores an object, or a newer state of it, and calls the handlers before the next event is read.
func (i *Informer) keep(o runtime.Object) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	old, exists, err := i.store.Get(o)
	if err != nil {
		return err
	}
	if err := i.store.Update(o); err != nil {
		return err
	}
	for _, h := range i.handlers {
		if exists {
			h.OnUpdate(old, o)
		} else {
			h.OnAdd(o, false)
		}
	}
	return nil
}

// drop removes a deleted object, and calls the handlers with its last state.
func (i *Informer) drop(last runtime.Object) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if err := i.store.Delete(last); err != nil {
		return err
	}
	for _, h := range i.handlers {
		h.OnDelete(last)
	}
	return nil
}

// replace makes the store equal to a list, and calls the handlers for the differences: first for the deleted
// objects, then for the others in no particular order. An object whose resourceVersion the store has already keeps
// its old Go value and calls no handler. replace takes ownership of the map.
func (i *Informer) replace(list map[string]runtime.Object, version string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	var deleted []cache.DeletedFinalStateUnknown
	before, items := map[string]any{}, make([]any, 0, len(list))
	for _, key := range i.store.ListKeys() {
		old, _, err := i.store.GetByKey(key)
		if err != nil {
			return err
		}
		before[key] = old
		if _, still := list[key]; !still {
			deleted = append(deleted, cache.DeletedFinalStateUnknown{Key: key, Obj: old})
		}
	}
	for key, o := range list {
		if old, ok := before[key]; ok && versionOf(old) == versionOf(o) {
			items = append(items, old)
			delete(list, key)
		} else {
			items = append(items, o)
		}
	}
	if err := i.store.Replace(items, version); err != nil {
		return err
	}
	for _, h := range i.handlers {
		for _, last := range deleted {
			h.OnDelete(last)
		}
		for key, o := range list {
			if old, ok := before[key]; ok {
				h.OnUpdate(old, o)
			} else {
				h.OnAdd(o, true)
			}
		}
	}
	return nil
}

func versionOf(o any) string {
	m, err := meta.Accessor(o)
	if err != nil {
		return ""
	}
	return m.GetResourceVersion()
}
