// Package ttl deletes objects after a time to live. An object with the annotation coxswain.dev/ttl is deleted when
// that time has passed since its last write by a user with the right to delete it.
//
// Two small documents accompany such an object. They are written and deleted in the transactions of the object.
// One, in the collection lifetimes, marks the object as having a lifetime. The other one, in the collection timers,
// has an etcd lease. The end of the lease deletes only the timer. A lifetime without a timer has ended, and one of
// the servers then deletes the object as a client would. Even if servers crash, the lifetime stays until the
// deletion has begun or is no longer wanted.
//
// Effect and End return the writes that belong in an object's transaction (lifetime.go). Run deletes the objects at
// the end of their lifetime (expiry.go), using a loopback.Client. This package must not import package
// apiserver.
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
	"github.com/coxswain-dev/coxswain/apiserver/loopback"
	"github.com/coxswain-dev/coxswain/storage"
)

// Annotation contains the duration after which an object is deleted, counted from its last write by a user with the
// right to delete it.
const Annotation = "coxswain.dev/ttl"

// The content of both documents depends only on the object. They are never compared, because every transaction that
// writes them compares the object's revision. An object without the annotation has neither document, and its writes
// have no extra cost.
const (
	lifetimes = "claims/lifetimes"
	timers    = "claims/timers"
)

// Store is the part of storage.Store that this package uses.
type Store interface {
	Collection(name string, o storage.CollectionOptions) *storage.Collection
	Commit(ctx context.Context, writes ...storage.Write) (*storage.CommitResult, error)
	Frontier() int64
}

// Options configures Lifetimes. All fields are required.
type Options struct {
	Store    Store
	Registry *api.Registry
	Objects  loopback.Client
	// Servers is the collection of running servers, named by their addresses.
	Servers string
	// EventTTL is the time to live of objects without the annotation, if their kind expires.
	EventTTL time.Duration
	// DeleteTimeout limits the deletion of one object.
	DeleteTimeout time.Duration
	Clock         clock.WithTicker
	Log           *slog.Logger
}

// Lifetimes manages the times to live of all objects. Its methods are safe for concurrent use.
type Lifetimes struct {
	Options
	deletions *prometheus.CounterVec
	expirer   atomic.Pointer[expirer] // set by Run
}

// New returns Lifetimes without starting them: see Run.
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

// nameOf returns the name of the documents for an object: its key, with slashes replaced by a character that names
// cannot contain (path segment names in k8s.io/apimachinery).
func nameOf(key storage.Key) string { return strings.ReplaceAll(key.String(), "/", "%") }

// keyOf inverts nameOf.
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

// Collect implements prometheus.Collector. It counts objects on each call.
func (l *Lifetimes) Collect(ch chan<- prometheus.Metric) {
	l.deletions.Collect(ch)
	all, running := l.documents(lifetimes).Count(), l.documents(timers).Count()
	ch <- prometheus.MustNewConstMetric(objectsDesc, prometheus.GaugeValue, float64(all))
	ch <- prometheus.MustNewConstMetric(overdueDesc, prometheus.GaugeValue, float64(max(0, all-running)))
}
