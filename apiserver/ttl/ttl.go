// Package ttl gives objects a time to live. An object with the annotation coxswain.dev/ttl is deleted when that time
// has passed since it was last written by a user who may delete it.
//
// Two small documents stand beside such an object, written and deleted in its own transactions: one in the collection
// lifetimes, which marks it as having a lifetime, and one in the collection timers, which has the etcd lease. The lease
// deletes the timer and nothing else. A lifetime without a timer has ended, and one of the servers then deletes the
// object as a client would. However many servers die meanwhile, the lifetime stays until the deletion has begun or is
// no longer wanted.
//
// A change of an object comes in; the writes that belong in its transaction come out (lifetime.go). Run deletes the
// objects whose time has ended (expiry.go), through the small interface Objects; the server must not be imported.
package ttl

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/storage"
)

// Annotation gives the duration after which an object is deleted, counted from its last write by a user that may delete
// it.
const Annotation = "coxswain.dev/ttl"

// Both documents depend on the object alone and are never compared: every transaction that writes them compares the
// object's revision. An object without the annotation has neither, and its writes cost nothing more.
const (
	lifetimes = "claims/lifetimes"
	timers    = "claims/timers"
)

// Store is the part of storage.Store that times to live need.
type Store interface {
	Collection(name string, o storage.CollectionOptions) *storage.Collection
	Commit(ctx context.Context, writes ...storage.Write) (*storage.CommitResult, error)
	Frontier() int64
}

// Objects are the API's objects.
type Objects interface {
	// Collection opens the stored objects of a kind.
	Collection(res *api.Resource) *storage.Collection
	// Delete answers a client's DELETE of an object as it is at its revision. It returns storage.ErrNotFound where the
	// object is gone already, and a Conflict where it has been written meanwhile.
	Delete(ctx context.Context, res *api.Resource, o *storage.Object) error
}

// Options assemble the Lifetimes. All are required.
type Options struct {
	Store    Store
	Registry *api.Registry
	Objects  Objects
	// Servers is the collection of the servers that run, named by their addresses.
	Servers string
	// EventTTL is how long objects of kinds that expire are kept if they say nothing else.
	EventTTL time.Duration
	// DeleteTimeout bounds the deletion of one object.
	DeleteTimeout time.Duration
	Clock         clock.WithTicker
	Log           *slog.Logger
}

// Lifetimes are the times to live of all objects. Its methods are safe for concurrent use.
type Lifetimes struct {
	Options
	deletions *prometheus.CounterVec
	expirer   atomic.Pointer[expirer] // set by Run
}

// New returns the Lifetimes. It does not start anything: see Run.
func New(o Options) *Lifetimes {
	return &Lifetimes{Options: o, deletions: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "coxswain_ttl_deletions_total",
		Help: "Attempts to delete an object whose time to live had ended, by what became of them: deleted (or " +
			"its deletion begun), refused or failed.",
	}, []string{"result"})}
}

func (l *Lifetimes) documents(collection string) *storage.Collection {
	return l.Store.Collection(collection, storage.CollectionOptions{})
}

// nameOf is the name of the documents about an object's lifetime: its path, with a character for the slashes that no
// name has (path segment names in k8s.io/apimachinery).
func nameOf(key storage.Key) string { return strings.ReplaceAll(key.String(), "/", "%") }

// keyOf is the inverse of nameOf.
func keyOf(name string) (storage.Key, error) {
	return storage.ParseKey(strings.ReplaceAll(name, "%", "/"))
}

var (
	objectsDesc = prometheus.NewDesc("coxswain_ttl_objects",
		"Number of stored objects with the annotation "+Annotation+".", nil, nil)
	overdueDesc = prometheus.NewDesc("coxswain_ttl_overdue_objects",
		"Number of objects whose time to live has ended and whose deletion has not begun.", nil, nil)
)

// Describe implements prometheus.Collector.
func (l *Lifetimes) Describe(ch chan<- *prometheus.Desc) {
	l.deletions.Describe(ch)
	ch <- objectsDesc
	ch <- overdueDesc
}

// Collect implements prometheus.Collector. Objects are counted when asked.
func (l *Lifetimes) Collect(ch chan<- prometheus.Metric) {
	l.deletions.Collect(ch)
	all, running := l.documents(lifetimes).Count(), l.documents(timers).Count()
	ch <- prometheus.MustNewConstMetric(objectsDesc, prometheus.GaugeValue, float64(all))
	ch <- prometheus.MustNewConstMetric(overdueDesc, prometheus.GaugeValue, float64(max(0, all-running)))
}
