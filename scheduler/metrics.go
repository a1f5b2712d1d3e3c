package scheduler

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// metrics have the names that Kubernetes dashboards query.
type metrics struct {
	clock     clock.PassiveClock
	duration  *prometheus.HistogramVec
	attempts  *prometheus.CounterVec
	algorithm prometheus.Histogram
	points    *prometheus.HistogramVec
	sli       *prometheus.HistogramVec
	perPod    prometheus.Histogram
	incoming  *prometheus.CounterVec
	preempted prometheus.Histogram
	preempts  prometheus.Counter
	state     *stateCollector
}

func newMetrics(c clock.PassiveClock) *metrics {
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	}
	exponential := prometheus.ExponentialBuckets
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &metrics{
		clock: c,
		duration: histogram("scheduler_scheduling_attempt_duration_seconds",
			"Time from taking a pod from the queue to its binding, or to finding that there is no node for it.",
			exponential(0.001, 2, 15), "result", "profile"),
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "scheduler_schedule_attempts_total",
			Help: "Attempts to schedule a pod, by result: scheduled, unschedulable, or error.",
		}, []string{"result", "profile"}),
		algorithm: prometheus.NewHistogram(
			prometheus.HistogramOpts{Name: "scheduler_scheduling_algorithm_duration_seconds",
				Help: "Duration of scheduling cycles.", Buckets: exponential(0.0001, 2, 18)}),
		points: histogram("scheduler_framework_extension_point_duration_seconds",
			"Duration of all plugins of an extension point.", exponential(0.0001, 2, 12), "extension_point", "profile"),
		sli: histogram("scheduler_pod_scheduling_sli_duration_seconds",
			"Time from a pod's entering the queue to its binding, by the number of attempts.",
			exponential(0.01, 2, 20), "attempts"),
		perPod: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "scheduler_pod_scheduling_attempts",
			Help: "Attempts that it took to schedule a pod.", Buckets: exponential(1, 2, 5)}),
		incoming: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "scheduler_queue_incoming_pods_total",
			Help: "Pods that entered a queue, by queue and by the event that moved them.",
		}, []string{"queue", "event"}),
		preempted: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "scheduler_preemption_victims",
			Help: "Victims of a preemption.", Buckets: exponential(1, 2, 7)}),
		preempts: prometheus.NewCounter(prometheus.CounterOpts{Name: "scheduler_preemption_attempts_total",
			Help: "Preemptions so far."}),
		state: &stateCollector{
			pending: desc("scheduler_pending_pods",
				"Pods without a node, by queue: active, backoff, unschedulable, gated.", "queue"),
			refused: desc("scheduler_unschedulable_pods", "Pods that wait because of a plugin.", "plugin", "profile"),
			cache:   desc("scheduler_scheduler_cache_size", "Nodes, pods, and assumed pods in the cache.", "type"),
			changes: desc("scheduler_inflight_events", "Changes that are kept for the pods in flight."),
		},
	}
}

func (m *metrics) register(r prometheus.Registerer, s *scheduler) error {
	m.state.scheduler = s
	for _, c := range m.all() {
		if err := r.Register(c); err != nil {
			return err
		}
	}
	return nil
}

func (m *metrics) unregister(r prometheus.Registerer) {
	for _, c := range m.all() {
		r.Unregister(c)
	}
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.duration, m.attempts, m.algorithm, m.points, m.sli, m.perPod, m.incoming,
		m.preempted, m.preempts, m.state}
}

// extensionPoint starts to measure an extension point. The returned function ends the measurement.
func (m *metrics) extensionPoint(point, profile string) func() {
	began := m.clock.Now()
	return func() { m.points.WithLabelValues(point, profile).Observe(m.clock.Since(began).Seconds()) }
}

func (m *metrics) scheduled(profile string, now time.Time, a *attempt) {
	m.attempt(profile, "scheduled", now.Sub(a.began))
	m.perPod.Observe(float64(a.attempts))
	m.sli.WithLabelValues(attemptsLabel(a.attempts)).Observe(now.Sub(a.first).Seconds())
}

// attempt counts an attempt that has ended.
func (m *metrics) attempt(profile, result string, took time.Duration) {
	m.duration.WithLabelValues(result, profile).Observe(took.Seconds())
	m.attempts.WithLabelValues(result, profile).Inc()
}

func attemptsLabel(attempts int) string {
	if attempts >= 16 {
		return "16+"
	}
	return [...]string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15"}[attempts]
}

// stateCollector counts queue and cache at each collection, and has no cost otherwise.
type stateCollector struct {
	pending, refused, cache, changes *prometheus.Desc
	scheduler                        *scheduler
}

// Describe implements prometheus.Collector.
func (c *stateCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.pending
	ch <- c.refused
	ch <- c.cache
	ch <- c.changes
}

// Collect implements prometheus.Collector.
func (c *stateCollector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value), labels...)
	}
	s := c.scheduler
	counts := s.queue.counts()
	for _, where := range []place{active, backoff, unschedulable, gated} {
		gauge(c.pending, counts[where], string(where))
	}
	refused := map[[2]string]int{}
	s.queue.refusals(func(pod *framework.PodInfo, plugin string) {
		refused[[2]string{plugin, schedulerName(pod.Pod)}]++
	})
	for key, n := range refused {
		gauge(c.refused, n, key[0], key[1])
	}
	s.cache.mu.Lock()
	nodes, pods, assumed := s.cache.sizes()
	s.cache.mu.Unlock()
	gauge(c.cache, nodes, "nodes")
	gauge(c.cache, pods, "pods")
	gauge(c.cache, assumed, "assumed_pods")
	gauge(c.changes, s.queue.changesKept())
}
