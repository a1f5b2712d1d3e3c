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
	permit    *prometheus.HistogramVec
	// evaluations counts each plugin once in an attempt. plugins measures the plugins of one attempt in ten, because
	// they are called for every node.
	evaluations *prometheus.CounterVec
	plugins     *prometheus.HistogramVec
	goroutines  *prometheus.GaugeVec
	binding     prometheus.Gauge // the goroutines of binding cycles
	state       *stateCollector
}

func newMetrics(c clock.PassiveClock) *metrics {
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	}
	exponential := prometheus.ExponentialBuckets
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	goroutines := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "scheduler_goroutines",
		Help: "Number of running goroutines split by the work they do such as binding."}, []string{"operation"})
	return &metrics{
		clock: c,
		duration: histogram("scheduler_scheduling_attempt_duration_seconds",
			"Scheduling attempt latency in seconds (scheduling algorithm + binding)",
			exponential(0.001, 2, 15), "result", "profile"),
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "scheduler_schedule_attempts_total",
			Help: "Number of attempts to schedule pods, by the result. 'unschedulable' means a pod could not be " +
				"scheduled, while 'error' means an internal scheduler problem.",
		}, []string{"result", "profile"}),
		algorithm: prometheus.NewHistogram(
			prometheus.HistogramOpts{Name: "scheduler_scheduling_algorithm_duration_seconds",
				Help: "Scheduling algorithm latency in seconds", Buckets: exponential(0.0001, 2, 18)}),
		points: histogram("scheduler_framework_extension_point_duration_seconds",
			"Latency for running all plugins of a specific extension point.", exponential(0.0001, 4, 6),
			"extension_point", "status", "profile"),
		sli: histogram("scheduler_pod_scheduling_sli_duration_seconds",
			"E2e latency for a pod being scheduled, from the time the pod enters the scheduling queue and might "+
				"involve multiple scheduling attempts.",
			exponential(0.01, 2, 20), "attempts"),
		perPod: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "scheduler_pod_scheduling_attempts",
			Help: "Number of attempts to successfully schedule a pod.", Buckets: exponential(1, 2, 5)}),
		incoming: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "scheduler_queue_incoming_pods_total",
			Help: "Number of pods added to scheduling queues by event and queue type.",
		}, []string{"queue", "event"}),
		preempted: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "scheduler_preemption_victims",
			Help: "Number of selected preemption victims", Buckets: exponential(1, 2, 7)}),
		preempts: prometheus.NewCounter(prometheus.CounterOpts{Name: "scheduler_preemption_attempts_total",
			Help: "Total preemption attempts in the cluster till now"}),
		permit: histogram("scheduler_permit_wait_duration_seconds", "Duration of waiting on permit.",
			exponential(0.001, 2, 15), "result"),
		evaluations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "scheduler_plugin_evaluation_total",
			Help: "Number of attempts to schedule pods by each plugin and the extension point (available only in " +
				"PreFilter, Filter, PreScore, and Score).",
		}, []string{"plugin", "extension_point", "profile"}),
		plugins: histogram("scheduler_plugin_execution_duration_seconds",
			"Duration for running a plugin at a specific extension point.", exponential(0.00001, 10, 4),
			"plugin", "extension_point", "status"),
		goroutines: goroutines, binding: goroutines.WithLabelValues("binding"),
		state: &stateCollector{
			pending: desc("scheduler_pending_pods",
				"Number of pending pods, by the queue type. 'active' means number of pods in activeQ; 'backoff' means "+
					"number of pods in backoffQ; 'unschedulable' means number of pods in unschedulablePods that the "+
					"scheduler attempted to schedule and failed; 'gated' is the number of unschedulable pods that "+
					"the scheduler never attempted to schedule because they are gated.", "queue"),
			refused: desc("scheduler_unschedulable_pods", "The number of unschedulable pods broken down by plugin "+
				"name. A pod will increment the gauge for all plugins that caused it to not schedule and so this "+
				"metric have meaning only when broken down by plugin.", "plugin", "profile"),
			cache: desc("scheduler_cache_size",
				"Number of nodes, pods, and assumed (bound) pods in the scheduler cache.", "type"),
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
		m.preempted, m.preempts, m.permit, m.evaluations, m.plugins, m.goroutines, m.state}
}

// point observes an extension point of a profile that began at a time and has ended with a code.
func (m *metrics) point(name string, p *profile, began time.Time, code framework.Code) {
	m.points.WithLabelValues(name, code.String(), p.name).Observe(m.clock.Since(began).Seconds())
}

// plugin observes a call of a plugin.
func (m *metrics) plugin(name, point string, began time.Time, status *framework.Status) {
	m.plugins.WithLabelValues(name, point, status.Code().String()).Observe(m.clock.Since(began).Seconds())
}

// codeOf returns the code of an extension point that ended with an error.
func codeOf(err error) framework.Code {
	if err != nil {
		return framework.Error
	}
	return framework.Success
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
