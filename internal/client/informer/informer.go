// Package informer keeps copies of a server's objects in memory, at the price of one goroutine for each kind.
//
// An informer of client-go has seven goroutines, and two more for each handler, so that a handler may block. Handlers
// here only put keys into work queues and update small indexes. This package therefore reads a watch, updates the copy
// and calls the handlers in one goroutine, which blocks in the read of the response nearly all the time. Everything
// else is as in client-go: an Informer is a cache.SharedIndexInformer, a Factory an informers.SharedInformerFactory,
// and listers are client-go's.
//
//	informer.go  the copy and its handlers
//	reflect.go   what keeps the copy up to date: list, watch, and what follows when they fail
//	source.go    the requests, and the decoding of their answers
//	factory.go   informers of built-in kinds, shared by their users (groups.go: by API group)
//
// Handlers must not block, and must not add or remove handlers.
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

// Informer is a cache.SharedIndexInformer without resyncs. Its methods are safe for concurrent use.
type Informer struct {
	source source
	log    *slog.Logger
	store  cache.Indexer
	synced chan struct{}
	// revision is that of the last change that all handlers have seen, or of a later bookmark.
	revision atomic.Int64
	version  atomic.Value // the same as the server writes it: a string
	resting  atomic.Bool  // after a failure, for a while
	begun    atomic.Bool
	ended    atomic.Bool

	onError func(error)

	mu        sync.Mutex // held while the store changes and the handlers are called
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

// registration is a handler. All of them have synced when the informer has: a later one is called for all objects
// before AddEventHandler returns.
type registration struct {
	cache.ResourceEventHandler
	informer *Informer
}

// HasSynced implements cache.ResourceEventHandlerRegistration.
func (r *registration) HasSynced() bool { return r.informer.HasSynced() }

// HasSyncedChecker implements cache.ResourceEventHandlerRegistration.
func (r *registration) HasSyncedChecker() cache.DoneChecker { return r.informer.HasSyncedChecker() }

// AddEventHandler implements cache.SharedInformer. The handler is called in the informer's goroutine; for the objects
// that are there already, in the caller's.
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

// RemoveEventHandler implements cache.SharedInformer. The handler is not called after it returns.
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

// OnError has f called, in the informer's goroutine, after a list or a watch has failed and before the next try. It
// must be called before the informer starts.
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

// HasSynced implements cache.SharedInformer. The handlers have seen the first list, too.
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

// LastSyncResourceVersion implements cache.SharedInformer. Unlike client-go's it is thread-safe, and the handlers have
// seen all changes up to it.
func (i *Informer) LastSyncResourceVersion() string { return i.version.Load().(string) }

// Busy describes what keeps the handlers from having seen all changes up to a revision of the server. It is "" where
// they have, and where the informer does not run or waits to try again after a failure.
func (i *Informer) Busy(revision int64) string {
	if !i.begun.Load() || i.ended.Load() || i.resting.Load() {
		return ""
	}
	if seen := i.revision.Load(); seen < revision {
		return fmt.Sprintf("%s have been seen up to revision %d of %d", &i.source, seen, revision)
	}
	return ""
}

// keep stores an object, or a newer state of it, and calls the handlers.
func (i *Informer) keep(o runtime.Object) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	old, known, err := i.store.Get(o)
	if err != nil {
		return err
	}
	if err := i.store.Update(o); err != nil {
		return err
	}
	for _, h := range i.handlers {
		if known {
			h.OnUpdate(old, o)
		} else {
			h.OnAdd(o, false)
		}
	}
	return nil
}

// drop removes an object that was deleted, by its last state.
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

// replace makes the store what a list has, and calls the handlers for the differences. An object that the store has in
// the same version is not new.
func (i *Informer) replace(list map[string]runtime.Object, version string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	var gone []cache.DeletedFinalStateUnknown
	before, items := map[string]any{}, make([]any, 0, len(list))
	for _, key := range i.store.ListKeys() {
		old, _, err := i.store.GetByKey(key)
		if err != nil {
			return err
		}
		before[key] = old
		if _, still := list[key]; !still {
			gone = append(gone, cache.DeletedFinalStateUnknown{Key: key, Obj: old})
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
		for _, last := range gone {
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
