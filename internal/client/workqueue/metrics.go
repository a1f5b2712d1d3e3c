package workqueue

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics measures any number of queues, with the metric names that dashboards for kube-controller-manager query.
// Queues with the same name share their series. A *Metrics is a prometheus.Collector, and safe for concurrent use.
type Metrics struct {
	depth          *prometheus.GaugeVec
	adds, retries  *prometheus.CounterVec
	waited, worked *prometheus.HistogramVec
	unfinished     *prometheus.Desc
	longest        *prometheus.Desc

	// mu guards started. Collect holds it while it takes the lock of one queue after the other. A queue takes it under
	// its own lock in Start alone, and is not in started at that time.
	mu      sync.Mutex
	started map[measured]struct{}
}

// measured is a started queue. Collect asks it how long its workers have been at work.
type measured interface {
	atWork(now time.Time) (name string, total, longest time.Duration)
}

// NewMetrics returns metrics without any queue.
func NewMetrics() *Metrics {
	labels := []string{"name"}
	histogram := func(name, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(1e-5, 10, 8),
		}, labels)
	}
	return &Metrics{
		depth: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "workqueue_depth", Help: "Current depth of workqueue"}, labels),
		adds: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "workqueue_adds_total", Help: "Total number of adds handled by workqueue"}, labels),
		retries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "workqueue_retries_total", Help: "Total number of retries handled by workqueue"}, labels),
		waited: histogram("workqueue_queue_duration_seconds",
			"How long in seconds an item stays in workqueue before being requested."),
		worked: histogram("workqueue_work_duration_seconds",
			"How long in seconds processing an item from workqueue takes."),
		unfinished: prometheus.NewDesc("workqueue_unfinished_work_seconds", "How many seconds of work has done that "+
			"is in progress and hasn't been observed by work_duration. Large values indicate stuck threads. One can "+
			"deduce the number of stuck threads by observing the rate at which this increases.", labels, nil),
		longest: prometheus.NewDesc("workqueue_longest_running_processor_seconds",
			"How many seconds has the longest running processor for workqueue been running.", labels, nil),
		started: map[measured]struct{}{},
	}
}

func (m *Metrics) vectors() []prometheus.Collector {
	return []prometheus.Collector{m.depth, m.adds, m.retries, m.waited, m.worked}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, v := range m.vectors() {
		v.Describe(ch)
	}
	ch <- m.unfinished
	ch <- m.longest
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	for _, v := range m.vectors() {
		v.Collect(ch)
	}
	type atWork struct{ total, longest time.Duration }
	byName := map[string]atWork{}
	now := time.Now()
	m.mu.Lock()
	for q := range m.started {
		name, total, longest := q.atWork(now)
		sum := byName[name]
		byName[name] = atWork{sum.total + total, max(sum.longest, longest)}
	}
	m.mu.Unlock()
	for name, w := range byName {
		ch <- prometheus.MustNewConstMetric(m.unfinished, prometheus.GaugeValue, w.total.Seconds(), name)
		ch <- prometheus.MustNewConstMetric(m.longest, prometheus.GaugeValue, w.longest.Seconds(), name)
	}
}

// watch includes a queue's workers in the metrics until forget is called. A nil *Metrics ignores it.
func (m *Metrics) watch(q measured) (forget func()) {
	if m == nil {
		return func() {}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.started[q] = struct{}{}
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.started, q)
	}
}

func (q *Queue[K]) atWork(now time.Time) (name string, total, longest time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, since := range q.working {
		total += now.Sub(since)
		longest = max(longest, now.Sub(since))
	}
	return q.Name, total, longest
}

// queueMetrics are the metrics of one queue. The methods of a nil *queueMetrics have no effect, and read no clock.
type queueMetrics struct {
	depth          prometheus.Gauge
	adds, retries  prometheus.Counter
	waited, worked prometheus.Observer
}

func (m *Metrics) forQueue(name string) *queueMetrics {
	return &queueMetrics{
		depth: m.depth.WithLabelValues(name),
		adds:  m.adds.WithLabelValues(name), retries: m.retries.WithLabelValues(name),
		waited: m.waited.WithLabelValues(name), worked: m.worked.WithLabelValues(name),
	}
}

// added counts an added key, and returns the time for taken.
func (m *queueMetrics) added() (now time.Time) {
	if m != nil {
		m.adds.Inc()
		now = time.Now()
	}
	return now
}

// taken counts a key that a worker takes, and returns the time for done.
func (m *queueMetrics) taken(added time.Time) (now time.Time) {
	if m != nil {
		m.depth.Dec()
		now = time.Now()
		m.waited.Observe(now.Sub(added).Seconds())
	}
	return now
}

func (m *queueMetrics) done(taken time.Time) {
	if m != nil {
		m.worked.Observe(time.Since(taken).Seconds())
	}
}

func (m *queueMetrics) deeper() {
	if m != nil {
		m.depth.Inc()
	}
}

func (m *queueMetrics) dropped(n int) {
	if m != nil {
		m.depth.Sub(float64(n))
	}
}

func (m *queueMetrics) retry() {
	if m != nil {
		m.retries.Inc()
	}
}
