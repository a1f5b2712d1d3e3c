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

// Every server watches the timers. When one has ended, the object is deleted as a client would delete it: through all
// the checks that a DELETE meets.
//
// Of several servers one deletes it. Each knows from the collection of servers which of them is the first to act for
// a name; the others follow one after the other, each after a time in which it should have been done, and mostly find
// nothing to do. A deletion that failed is tried again, less and less often where it was refused.

const (
	// expiryWorkers is how many objects are deleted at once: timers that share a lease end together.
	expiryWorkers = 8
	// expiryTurn is how long a server leaves an object to the one before it.
	expiryTurn = 5 * time.Second
	// expiryRetry is after how long an object is tried again that could not be deleted because etcd did not answer.
	expiryRetry = 5 * time.Second
	// After a refusal, such as that of an admission policy, the next try comes after expiryBackoffMin, and ever later
	// up to expiryBackoffMax.
	expiryBackoffMin, expiryBackoffMax = time.Second, 5 * time.Minute
	// expiryAttempts is how often in a row an object is tried that is written at the same time.
	expiryAttempts = 5
)

// expirer is the part of one server.
type expirer struct {
	*Lifetimes
	self    string                                       // its name among the servers
	ended   workqueue.TypedRateLimitingInterface[string] // names of lifetimes
	noticed atomic.Int64                                 // the revision of the timers up to which all have been seen
	working atomic.Int64                                 // deletions under way
}

// Busy reports whether there are timers in memory that have ended and whose objects are not dealt with.
func (l *Lifetimes) Busy() bool {
	e := l.expirer.Load()
	if e == nil {
		return false
	}
	changed, _ := l.documents(timers).Changed()
	return e.noticed.Load() < changed || e.ended.Len() > 0 || e.working.Load() > 0
}

// Run deletes the objects whose time has ended until ctx ends, as the server of that name among the servers.
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

// follow notices the lifetimes that have ended.
func (e *expirer) follow(ctx context.Context) {
	for ctx.Err() == nil {
		if err := e.followOnce(ctx); errors.Is(err, storage.ErrUnavailable) {
			return // the store has closed
		}
	}
}

// followOnce begins with those that ended before: while no server ran, or unseen by a watcher that fell behind.
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
			// A timer that was deleted with its object, or taken off it, has no lifetime beside it either.
			if event.Type == storage.Deleted && e.lives(ctx, event.Object.Key.Name) != nil {
				e.notice(ctx, event.Object.Key.Name)
			}
		}
	}
}

// notice has a lifetime looked at when it is this server's turn.
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

// rank orders the servers for a name; each name has an order of its own.
func rank(name, server string) [sha256.Size]byte { return sha256.Sum256([]byte(name + " " + server)) }

// work deletes the objects that are due, until the queue is shut down.
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

// do deletes one object, or sees to it that this is tried again.
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
	case storage.Failed(err) || errors.Is(err, context.DeadlineExceeded): // which others complain about
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

// lives is the lifetime of that name in memory, nil if there is none.
func (l *Lifetimes) lives(ctx context.Context, name string) *storage.Object {
	life, _ := l.documents(lifetimes).Get(ctx, "", name, storage.At{Any: true})
	return life
}

// runs reports whether memory has a timer of a lifetime.
func (l *Lifetimes) runs(ctx context.Context, name string) bool {
	_, err := l.documents(timers).Get(ctx, "", name, storage.At{Any: true})
	return err == nil
}

// expire deletes the object of a lifetime that has ended. It reports whether there was something to delete: there is
// not when another server was quicker, or the time has begun anew.
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

// endNow deletes the object of a lifetime without a timer, as it is now: had it been written meanwhile, the time might
// have begun anew. The lifetime of an object that is gone, or is being deleted, is forgotten.
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
	if errors.As(err, &refused) { // another server was quicker
		return false, nil
	}
	return false, err
}

// delete is the DELETE of the object at the revision at which it had no timer.
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

// stores is the kind whose objects are stored in a collection, nil for none.
func (l *Lifetimes) stores(collection string) *api.Resource {
	for _, res := range l.Registry.Snapshot().Resources {
		if res.Conversion == nil && !res.CreateOnly && !res.Virtual && res.Collection() == collection {
			return res
		}
	}
	return nil
}
