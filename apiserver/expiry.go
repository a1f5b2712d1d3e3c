package apiserver

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/storage"
)

// Every server watches the timers of lifetime.go. When one has ended, the object is deleted as a client would
// delete it: by the function that answers a DELETE, with everything that this meets, as a user of its own.
//
// Of several servers one does it. Each knows from the presences which of them is the first to act for a name; the
// others follow one after the other, each after a time in which it should have been done, and mostly find nothing
// to do. What could not be done is tried again, less and less often where it was refused.

const (
	// expiryWorkers is how many objects are deleted at once: timers that share a lease end together.
	expiryWorkers = 8
	// expiryTurn is for how long a server leaves an object to the one that comes before it.
	expiryTurn = 5 * time.Second
	// expiryRetry is when an object is looked at again that could not be deleted because etcd did not answer.
	expiryRetry = 5 * time.Second
	// A refusal, such as that of an admission policy, is met again after backoffMin, and ever later up to backoffMax.
	expiryBackoffMin, expiryBackoffMax = time.Second, 5 * time.Minute
	// expiryAttempts is how often in a row an object is tried that is written all the time.
	expiryAttempts = 5
)

// expiryUser deletes what has outlived its time. Nothing authorizes it: the right to delete was asked for when the
// time was set.
var expiryUser = &authn.User{Name: "system:apiserver-ttl", Groups: []string{authn.GroupAuthenticated}}

// expirer is the part of one server.
type expirer struct {
	server *Server
	self   string                                       // as which it notes its presence
	ended  workqueue.TypedRateLimitingInterface[string] // names of lifetimes
}

// keepLifetimes deletes the objects whose time has ended until ctx ends, as the server that is present at that
// address.
func (s *Server) keepLifetimes(ctx context.Context, at netip.AddrPort) {
	e := &expirer{server: s, self: at.String()}
	var ticking clock.WithTicker = clock.RealClock{}
	if c, ok := s.Clock.(clock.WithTicker); ok {
		ticking = c
	}
	e.ended = workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](expiryBackoffMin, expiryBackoffMax),
		workqueue.TypedRateLimitingQueueConfig[string]{Clock: ticking})
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
	s := e.server
	watcher, err := s.lifetimeDocuments(timers).Watch(ctx, storage.WatchRequest{From: s.Store.Frontier()})
	if err != nil {
		return err
	}
	defer watcher.Close()
	all, err := s.lifetimeDocuments(lifetimes).List(ctx, storage.ListRequest{At: storage.At{Any: true}})
	if err != nil {
		return err
	}
	for _, life := range all.Items {
		if !s.runs(ctx, life.Key.Name) {
			e.notice(ctx, life.Key.Name)
		}
	}
	for {
		events, err := watcher.Next(ctx)
		if err != nil {
			return err
		}
		for _, event := range events {
			// A timer that was deleted with its object, or taken off it, has no lifetime beside it either.
			if event.Type == storage.Deleted && s.lives(ctx, event.Object.Key.Name) != nil {
				e.notice(ctx, event.Object.Key.Name)
			}
		}
	}
}

// notice has a lifetime looked at when it is this server's turn.
func (e *expirer) notice(ctx context.Context, name string) {
	servers := e.server.Store.Collection(presences, storage.CollectionOptions{})
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

// rank is by what servers line up for a name, each name in an order of its own.
func rank(name, server string) [sha256.Size]byte { return sha256.Sum256([]byte(name + " " + server)) }

// work deletes what is due until the queue is shut down.
func (e *expirer) work(ctx context.Context) {
	var working sync.WaitGroup
	defer working.Wait()
	seats := make(chan struct{}, expiryWorkers)
	for {
		name, end := e.ended.Get()
		if end {
			return
		}
		seats <- struct{}{}
		working.Go(func() {
			e.do(ctx, name)
			e.ended.Done(name)
			<-seats
		})
	}
}

// do deletes one object, or sees to it that this is tried again.
func (e *expirer) do(ctx context.Context, name string) {
	path := strings.ReplaceAll(name, "%", "/")
	deleted, err := e.server.expire(ctx, name)
	switch {
	case err == nil:
		e.ended.Forget(name)
		if deleted {
			e.count("deleted")
			e.server.Log.Info("deleted an object whose time to live has ended", "key", path)
		}
	case ctx.Err() != nil:
	case etcdFailed(err) || errors.Is(err, context.DeadlineExceeded): // which others complain about
		e.count("failed")
		e.server.Log.Debug("an object whose time to live has ended could not be deleted", "key", path, "error", err)
		e.ended.AddAfter(name, expiryRetry)
	default:
		e.count("refused")
		e.server.Log.Warn("an object whose time to live has ended could not be deleted", "key", path, "error", err)
		e.ended.AddRateLimited(name)
	}
}

func (e *expirer) count(result string) { e.server.metrics.expiries.WithLabelValues(result).Inc() }

// lives is what memory has of a lifetime, nil for nothing.
func (s *Server) lives(ctx context.Context, name string) *storage.Object {
	life, _ := s.lifetimeDocuments(lifetimes).Get(ctx, "", name, storage.At{Any: true})
	return life
}

// runs reports whether memory has a timer of a lifetime.
func (s *Server) runs(ctx context.Context, name string) bool {
	_, err := s.lifetimeDocuments(timers).Get(ctx, "", name, storage.At{Any: true})
	return err == nil
}

// expire deletes the object of a lifetime that has ended. It reports whether there was something to delete: there is
// not when another server was quicker, or the time has begun anew.
func (s *Server) expire(ctx context.Context, name string) (deleted bool, err error) {
	ctx, cancel := context.WithTimeout(authn.WithUser(ctx, expiryUser), s.RequestTimeout)
	defer cancel()
	for attempt := 1; ; attempt++ {
		life := s.lives(ctx, name)
		if life == nil || s.runs(ctx, name) {
			return false, nil
		}
		deleted, err = s.endNow(ctx, life)
		if !apierrors.IsConflict(err) || attempt == expiryAttempts {
			return deleted, err
		}
	}
}

// endNow deletes the object of a lifetime without a timer, as it is now: had it been written meanwhile, the time might
// have begun anew. A lifetime of what is no more, or is being deleted, is forgotten.
func (s *Server) endNow(ctx context.Context, life *storage.Object) (deleted bool, err error) {
	key, err := lifetimeKey(life.Key.Name)
	if err != nil {
		return false, err
	}
	res := s.stores(key.Collection)
	if res == nil {
		return false, fmt.Errorf("no kind of objects is stored in %s", key.Collection)
	}
	o, err := s.collection(res).Get(ctx, key.Namespace, key.Name, storage.At{})
	if err != nil && !errors.Is(err, storage.ErrNotFound) {
		return false, err
	}
	if err == nil && o.UID == life.UID {
		obj, err := decode(res, o)
		if err != nil {
			return false, err
		}
		if _, set := obj.GetAnnotations()[ttlAnnotation]; set && obj.GetDeletionTimestamp() == nil {
			return s.deleteExpired(ctx, res, o)
		}
	}
	_, err = s.Store.Commit(ctx, storage.Write{Op: storage.Delete, Key: life.Key, Expect: life.Revision})
	return false, ignoreRefusal(err)
}

// deleteExpired is the DELETE of the object at the revision at which it had no timer.
func (s *Server) deleteExpired(ctx context.Context, res *api.Resource, o *storage.Object) (deleted bool, err error) {
	// Memory may have an object a moment before it has what was written with it.
	_, err = s.lifetimeDocuments(timers).Get(ctx, "", lifetimeName(o.Key), storage.At{Revision: o.Revision})
	if !errors.Is(err, storage.ErrNotFound) {
		return false, err
	}
	hr, err := http.NewRequestWithContext(ctx, http.MethodDelete, "/", http.NoBody)
	if err != nil {
		return false, err
	}
	r := &request{Request: hr, verb: "delete", res: res, objects: s.collection(res), query: url.Values{}}
	uid, revision := types.UID(o.UID), strconv.FormatInt(o.Revision, 10)
	options := &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &revision}}
	err = s.deleteOne(r, options, o)
	if errors.Is(err, storage.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// stores is the kind whose objects are stored in a collection, nil for none.
func (s *Server) stores(collection string) *api.Resource {
	for _, res := range s.Registry.Snapshot().Resources {
		if res.View == nil && !res.Review && !res.Computed && res.Collection() == collection {
			return res
		}
	}
	return nil
}

// lifetimeCounts reports how many objects have a time to live, counted when asked.
type lifetimeCounts struct{ s *Server }

var (
	lifetimesDesc = prometheus.NewDesc("coxswain_ttl_objects",
		"Number of stored objects with the annotation "+ttlAnnotation+".", nil, nil)
	overdueDesc = prometheus.NewDesc("coxswain_ttl_overdue_objects",
		"Number of objects whose time to live has ended and whose deletion has not begun.", nil, nil)
)

func (lifetimeCounts) Describe(ch chan<- *prometheus.Desc) {
	ch <- lifetimesDesc
	ch <- overdueDesc
}

func (c lifetimeCounts) Collect(ch chan<- prometheus.Metric) {
	all, running := c.s.lifetimeDocuments(lifetimes).Count(), c.s.lifetimeDocuments(timers).Count()
	ch <- prometheus.MustNewConstMetric(lifetimesDesc, prometheus.GaugeValue, float64(all))
	ch <- prometheus.MustNewConstMetric(overdueDesc, prometheus.GaugeValue, float64(max(0, all-running)))
}
