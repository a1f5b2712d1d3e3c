package storage

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/coxswain-dev/coxswain/internal/series"
)

// Collector reports etcd's state, under the names that Kubernetes' and etcd's dashboards query. It may
// be registered anywhere, and queries etcd on each collection.
// https://kubernetes.io/docs/reference/instrumentation/metrics/
func (s *Store) Collector() prometheus.Collector { return collector{s} }

type collector struct{ store *Store }

var (
	sizeDesc = prometheus.NewDesc("apiserver_storage_size_bytes",
		"Size of the storage database file physically allocated in bytes.", []string{"storage_cluster_id"}, nil)
	inUseDesc = prometheus.NewDesc("etcd_mvcc_db_total_size_in_use_in_bytes",
		"Size of the storage database that is in use, in bytes.", nil, nil)
	quotaDesc = prometheus.NewDesc("etcd_server_quota_backend_bytes",
		"Size in bytes above which etcd takes no more writes.", nil, nil)
	alarmDesc = prometheus.NewDesc("etcd_server_alarms",
		"1 for each type of alarm that is raised in etcd.", []string{"alarm_type"}, nil)
	receivedDesc = prometheus.NewDesc("apiserver_storage_events_received_total",
		"Number of etcd events received split by kind.", []string{"group", "resource"}, nil)
)

// clusterID is Kubernetes' name for the first etcd cluster. There is one.
const clusterID = "etcd-0"

// collectPatience bounds the request to etcd, as kube-apiserver does.
const collectPatience = time.Second

func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{sizeDesc, inUseDesc, quotaDesc, alarmDesc, receivedDesc} {
		ch <- d
	}
	c.store.backend.duration.Describe(ch)
	c.store.backend.requests.Describe(ch)
	c.store.backend.failures.Describe(ch)
}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	c.store.each(func(collection *Collection) {
		received := collection.received.Load()
		if received == 0 || IsInternal(collection.name) {
			return
		}
		group, resource := groupResource(collection.name)
		ch <- prometheus.MustNewConstMetric(receivedDesc, prometheus.CounterValue, float64(received), group, resource)
	})
	ctx, cancel := context.WithTimeout(c.store.ctx, collectPatience)
	defer cancel()
	if status, err := c.store.backend.Status(ctx); err == nil {
		ch <- prometheus.MustNewConstMetric(sizeDesc, prometheus.GaugeValue, float64(status.Size), clusterID)
		ch <- prometheus.MustNewConstMetric(inUseDesc, prometheus.GaugeValue, float64(status.InUse))
		ch <- prometheus.MustNewConstMetric(quotaDesc, prometheus.GaugeValue, float64(status.Quota))
		for _, a := range []Alarm{NoSpace, Corrupt} {
			raised := 0.0
			if status.Has(a) {
				raised = 1
			}
			ch <- prometheus.MustNewConstMetric(alarmDesc, prometheus.GaugeValue, raised, string(a))
		}
	}
	c.store.backend.duration.Collect(ch)
	c.store.backend.requests.Collect(ch)
	c.store.backend.failures.Collect(ch)
}

// ForgetEvents ends the series of received events of the collections that are gone. They begin at zero with the next
// event.
func (s *Store) ForgetEvents(gone func(collection string) bool) {
	s.each(func(c *Collection) {
		if gone(c.name) {
			c.received.Store(0)
		}
	})
}

// meter is a Backend that times another.
type meter struct {
	Backend
	duration           *prometheus.HistogramVec
	requests, failures *prometheus.CounterVec
	recent             *series.Recent[operation, *metered]
}

// operation is an operation on a collection; "" stands for all of them, and for internal ones.
type operation struct{ name, collection string }

type metered struct {
	duration prometheus.Observer
	requests prometheus.Counter
}

// maxMetered is the greatest number of operations that are reported.
const maxMetered = 24

func newMeter(b Backend) *meter {
	labels := []string{"operation", "group", "resource"}
	m := &meter{
		Backend: b,
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "etcd_request_duration_seconds",
			Help:    "Etcd request latency in seconds for each operation and object type.",
			Buckets: []float64{0.0005, 0.001, 0.005, 0.025, 0.1, 0.5, 1, 5, 30},
		}, labels),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "etcd_requests_total",
			Help: "Etcd request counts for each operation and object type.",
		}, labels),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "etcd_request_errors_total",
			Help: "Etcd failed request counts for each operation and object type.",
		}, labels),
	}
	m.recent = series.NewRecent(maxMetered, m.begin, m.end)
	return m
}

func (o operation) labels() []string {
	group, resource := groupResource(o.collection)
	return []string{o.name, group, resource}
}

func (m *meter) begin(o operation) *metered {
	labels := o.labels()
	return &metered{m.duration.WithLabelValues(labels...), m.requests.WithLabelValues(labels...)}
}

func (m *meter) end(o operation) {
	labels := o.labels()
	m.duration.DeleteLabelValues(labels...)
	m.requests.DeleteLabelValues(labels...)
	m.failures.DeleteLabelValues(labels...)
}

// observe counts a request that has ended.
func (m *meter) observe(name, collection string, began time.Time, err error) {
	if IsInternal(collection) {
		collection = ""
	}
	o := operation{name, collection}
	counted := m.recent.Of(o)
	counted.duration.Observe(time.Since(began).Seconds())
	counted.requests.Inc()
	// A client that disconnected is not a failure of etcd's.
	if err != nil && !errors.Is(err, context.Canceled) {
		m.failures.WithLabelValues(o.labels()...).Inc()
	}
}

// internalCollections is the prefix of the collections that API servers use among themselves.
const internalCollections = "claims/"

// IsInternal reports whether API servers use a collection among themselves. No resource of the API corresponds to it.
func IsInternal(collection string) bool { return strings.HasPrefix(collection, internalCollections) }

// groupResource splits a collection's name as Kubernetes' metrics do: the legacy group is "".
func groupResource(collection string) (group, resource string) {
	group, resource, _ = strings.Cut(collection, "/")
	if group == "core" {
		group = ""
	}
	return group, resource
}

var operations = [...]string{Create: "create", Update: "update", Delete: "delete", Check: "check"}

func (m *meter) Commit(ctx context.Context, writes []Write) (*Outcome, error) {
	began := time.Now()
	outcome, err := m.Backend.Commit(ctx, writes)
	operation := "txn"
	if len(writes) == 1 {
		operation = operations[writes[0].Op]
	}
	m.observe(operation, writes[0].Key.Collection, began, err)
	return outcome, err
}

func (m *meter) Revision(ctx context.Context) (int64, error) {
	began := time.Now()
	revision, err := m.Backend.Revision(ctx)
	m.observe("get", "", began, err)
	return revision, err
}

func (m *meter) Range(ctx context.Context, r RangeRequest) (*RangeResult, error) {
	began := time.Now()
	result, err := m.Backend.Range(ctx, r)
	collection := ""
	if parts := strings.SplitN(r.Prefix, "/", 3); len(parts) == 3 {
		collection = r.Prefix[:len(parts[0])+1+len(parts[1])]
	}
	m.observe("list", collection, began, err)
	return result, err
}

func (m *meter) Compact(ctx context.Context, revision int64) error {
	began := time.Now()
	err := m.Backend.Compact(ctx, revision)
	m.observe("compact", "", began, err)
	return err
}

func (m *meter) Defragment(ctx context.Context) error {
	began := time.Now()
	err := m.Backend.Defragment(ctx)
	m.observe("defragment", "", began, err)
	return err
}
