package scheduler

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics bear the names that Kubernetes dashboards query.
type metrics struct {
	duration *prometheus.HistogramVec
	attempts *prometheus.CounterVec
	pending  *pendingPods
}

func newMetrics() *metrics {
	return &metrics{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "scheduler_scheduling_attempt_duration_seconds",
			Help:    "Time from taking a pod from the queue to its binding, or to knowing that there is none.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
		}, []string{"result", "profile"}),
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "scheduler_schedule_attempts_total",
			Help: "Attempts to schedule a pod, by result: scheduled, unschedulable, or error.",
		}, []string{"result", "profile"}),
		pending: &pendingPods{desc: prometheus.NewDesc("scheduler_pending_pods",
			"Pods without a node, by queue: active, backoff, unschedulable, gated.", []string{"queue"}, nil)},
	}
}

func (m *metrics) register(r prometheus.Registerer, q *queue) error {
	m.pending.queue = q
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
	return []prometheus.Collector{m.duration, m.attempts, m.pending}
}

func (m *metrics) observe(profile, result string, took time.Duration) {
	m.duration.WithLabelValues(result, profile).Observe(took.Seconds())
	m.attempts.WithLabelValues(result, profile).Inc()
}

// pendingPods counts the queue when it is asked, and costs nothing else.
type pendingPods struct {
	desc  *prometheus.Desc
	queue *queue
}

// Describe implements prometheus.Collector.
func (p *pendingPods) Describe(ch chan<- *prometheus.Desc) { ch <- p.desc }

// Collect implements prometheus.Collector.
func (p *pendingPods) Collect(ch chan<- prometheus.Metric) {
	counts := p.queue.counts()
	for _, at := range []place{active, backoff, unschedulable, gated} {
		ch <- prometheus.MustNewConstMetric(p.desc, prometheus.GaugeValue, float64(counts[at]), string(at))
	}
}
