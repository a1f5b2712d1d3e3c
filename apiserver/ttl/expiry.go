package ttl

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/storage"
)

// Every server watches the timers. When a timer ends, a server deletes the object as a client would, with all the
// checks of a DELETE.
//
// One server of several performs the deletion. For each name, a hash orders the servers listed in the collection of
// servers. The first one acts at once. Each following one waits long enough for the previous one to finish and
// usually finds the object deleted. A failed deletion is retried, with increasing pauses if it was refused.

const (
	// expiryWorkers limits the concurrent deletions. Timers that share a lease end together.
	expiryWorkers = 8
	// expiryTurn is how long each server waits for the previous one.
	expiryTurn = 5 * time.Second
	// expiryRetry is the pause before a retry if etcd did not respond.
	expiryRetry = 5 * time.Second
	// After a refusal, for example by an admission policy, the first retry is after expiryBackoffMin. The pauses
	// grow to expiryBackoffMax.
	expiryBackoffMin, expiryBackoffMax = time.Second, 5 * time.Minute
	// expiryAttempts limits consecutive attempts to delete an object that is being written concurrently.
	expiryAttempts = 5
)

// expirer deletes objects on one server.
type expirer struct {
	*Lifetimes
	self    string                                       // this server's name
	ended   workqueue.TypedRateLimitingInterface[string] // a queue of lifetime names
	noticed atomic.Int64                                 // all timers up to this revision have been processed
	working atomic.Int64                                 // deletions in progress
}

// Busy reports whether memory contains ended timers with objects that have not been processed.
func (l *Lifetimes) Busy() bool {
	e := l.expirer.Load()
	if e == nil {
		return false
	}
	changed, _ := l.documents(timers).Changed()
	return e.noticed.Load() < changed || e.ended.Len() > 0 || e.working.Load() > 0
}

// Run deletes objects at the end of their lifetime until ctx ends. self is this server's name in the collection of
// servers.
func (l *Lifetimes) Run(ctx context.Context, self string) {
	e := &expirer{Lifetimes: l, self: self}
	e.ended = workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](expiryBackoffMin, expiryBackoffMax),
		workqueue.TypedRateLimitingQueueConfig[string]{Clock: l.Clock})
	l.expirer.Store(e)
	var running sync.WaitGroup
	running.Go(func() { e.work(ctx) })
	e.follow(ctx)
	<-ctx.Done()
	e.ended.ShutDown()
	running.Wait()
}

// follow queues the lifetimes that end.
func (e *expirer) follow(ctx context.Context) {
	for ctx.Err() == nil {
		if err := e.followOnce(ctx); errors.Is(err, storage.ErrUnavailable) {
			return // the store has closed
		}
	}
}

// followOnce first queues the lifetimes that ended earlier: while no server was running, or unnoticed by a watcher
// that fell behind.
func (e *expirer) followOnce(ctx context.Context) error {
	from := e.Store.Frontier()
	watcher, err := e.documents(timers).Watch(ctx, storage.WatchRequest{From: from})
	if err != nil {
		return err
	}
	defer watcher.Close()
	all, err := e.documents(lifetimes).List(ctx, storage.ListRequest{At: storage.At{Any: true}})
	if err != nil {
		return err
	}
	for _, life := range all.Items {
		if !e.runs(ctx, life.Key.Name) {
			e.notice(ctx, life.Key.Name)
		}
	}
	for reached := from; ; {
		e.noticed.Store(reached)
		events, err := watcher.Next(ctx)
		if err != nil {
			return err
		}
		for _, event := range events {
			reached = event.Revision
			// If the timer was deleted together with the object or its annotation, the lifetime is gone too.
			if event.Type == storage.Deleted && e.lives(ctx, event.Object.Key.Name) != nil {
				e.notice(ctx, event.Object.Key.Name)
			}
		}
	}
}

// notice queues a lifetime for the time of this server's turn.
func (e *expirer) notice(ctx context.Context, name string) {
	servers := e.documents(e.Servers)
	list, err := servers.List(ctx, storage.ListRequest{At: storage.At{Any: true}})
	if err != nil {
		return // the store has closed
	}
	turn, own := 0, rank(name, e.self)
	for _, other := range list.Items {
		if r := rank(name, other.Key.Name); bytes.Compare(r[:], own[:]) < 0 {
			turn++
		}
	}
	e.ended.AddAfter(name, time.Duration(turn)*expiryTurn)
}

// rank orders the servers for a name. The order differs between names.
func rank(name, server string) [sha256.Size]byte { return sha256.Sum256([]byte(name + " " + server)) }

// work deletes the queued objects until the queue is shut down.
func (e *expirer) work(ctx context.Context) {
	var working sync.WaitGroup
	defer working.Wait()
	seats := make(chan struct{}, expiryWorkers)
	for {
		name, end := e.ended.Get()
		if end {
			return
		}
		e.working.Add(1)
		seats <- struct{}{}
		working.Go(func() {
			e.do(ctx, name)
			e.ended.Done(name)
			e.working.Add(-1)
			<-seats
		})
	}
}

// do deletes one object, or schedules a retry.
func (e *expirer) do(ctx context.Context, name string) {
	path := strings.ReplaceAll(name, "%", "/")
	deleted, err := e.expire(ctx, name)
	switch {
	case err == nil:
		e.ended.Forget(name)
		if deleted {
			e.count("deleted")
			e.Log.Info("deleted an object whose time to live has ended", "key", path)
		}
	case ctx.Err() != nil:
	case storage.Failed(err) || errors.Is(err, context.DeadlineExceeded): // reported elsewhere
		e.count("failed")
		e.Log.Debug("an object whose time to live has ended could not be deleted", "key", path, "error", err)
		e.ended.AddAfter(name, expiryRetry)
	default:
		e.count("refused")
		e.Log.Warn("an object whose time to live has ended could not be deleted", "key", path, "error", err)
		e.ended.AddRateLimited(name)
	}
}

func (e *expirer) count(result string) { e.deletions.WithLabelValues(result).Inc() }

// lives returns the lifetime with that name from memory, or nil.
func (l *Lifetimes) lives(ctx context.Context, name string) *storage.Object {
	life, _ := l.documents(lifetimes).Get(ctx, "", name, storage.At{Any: true})
	return life
}

// runs reports whether memory contains the timer of a lifetime.
func (l *Lifetimes) runs(ctx context.Context, name string) bool {
	_, err := l.documents(timers).Get(ctx, "", name, storage.At{Any: true})
	return err == nil
}

// expire deletes the object of an ended lifetime. It returns false if another server was faster or the lifetime was
// renewed.
func (l *Lifetimes) expire(ctx context.Context, name string) (deleted bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, l.DeleteTimeout)
	defer cancel()
	for attempt := 1; ; attempt++ {
		life := l.lives(ctx, name)
		if life == nil || l.runs(ctx, name) {
			return false, nil
		}
		deleted, err = l.endNow(ctx, life)
		if !apierrors.IsConflict(err) || attempt == expiryAttempts {
			return deleted, err
		}
	}
}

// endNow deletes the object of a lifetime without a timer, at its current revision, because a concurrent write
// might have renewed the lifetime. If the object is deleted or being deleted, endNow deletes the lifetime instead.
func (l *Lifetimes) endNow(ctx context.Context, life *storage.Object) (deleted bool, err error) {
	key, err := keyOf(life.Key.Name)
	if err != nil {
		return false, err
	}
	res := l.stores(key.Collection)
	if res == nil {
		return false, fmt.Errorf("no kind of objects is stored in %s", key.Collection)
	}
	o, err := l.Objects.Collection(res).Get(ctx, key.Namespace, key.Name, storage.At{})
	if err != nil && !errors.Is(err, storage.ErrNotFound) {
		return false, err
	}
	if err == nil && o.UID == life.UID {
		obj, err := encoding.Decode(ctx, res, o)
		if err != nil {
			return false, err
		}
		if _, set := obj.GetAnnotations()[Annotation]; set && obj.GetDeletionTimestamp() == nil {
			return l.delete(ctx, res, o)
		}
	}
	_, err = l.Store.Commit(ctx, storage.Write{Op: storage.Delete, Key: life.Key, Expect: life.Revision})
	var refused *storage.Refusal
	if errors.As(err, &refused) { // another server was faster
		return false, nil
	}
	return false, err
}

// delete performs a DELETE of the object, at a revision without a timer.
func (l *Lifetimes) delete(ctx context.Context, res *api.Resource, o *storage.Object) (deleted bool, err error) {
	// Memory may have an object a moment before the documents that were written with it.
	_, err = l.documents(timers).Get(ctx, "", nameOf(o.Key), storage.At{Revision: o.Revision})
	if !errors.Is(err, storage.ErrNotFound) {
		return false, err
	}
	err = l.Objects.Delete(ctx, res, o)
	if errors.Is(err, storage.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// stores returns the kind with objects in the collection, or nil.
func (l *Lifetimes) stores(collection string) *api.Resource {
	for _, res := range l.Registry.Snapshot().Resources {
		if res.Conversion == nil && !res.CreateOnly && !res.Virtual && res.Collection() == collection {
			return res
		}
	}
	return nil
}
