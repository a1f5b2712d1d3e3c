package controllers

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/util/workqueue"
)

// Metrics are those of all runs of this process, by the names that dashboards for
// kube-controller-manager query.
func Metrics() prometheus.Gatherer { return registry }

var (
	registry = prometheus.NewRegistry()

	depth      = gauge("workqueue_depth", "Current depth of workqueue", "name")
	adds       = counter("workqueue_adds_total", "Total number of adds handled by workqueue", "name")
	retries    = counter("workqueue_retries_total", "Total number of retries handled by workqueue", "name")
	unfinished = gauge("workqueue_unfinished_work_seconds", "How many seconds of work has done that is in "+
		"progress and hasn't been observed by work_duration. Large values indicate stuck threads. One can deduce "+
		"the number of stuck threads by observing the rate at which this increases.", "name")
	longest = gauge("workqueue_longest_running_processor_seconds",
		"How many seconds has the longest running processor for workqueue been running.", "name")
	waited = histogram("workqueue_queue_duration_seconds",
		"How long in seconds an item stays in workqueue before being requested.", "name")
	worked = histogram("workqueue_work_duration_seconds",
		"How long in seconds processing an item from workqueue takes.", "name")

	leads = gauge("leader_election_master_status", "Gauge of if the reporting system is master of the relevant "+
		"lease, 0 indicates backup, 1 indicates master. 'name' is the string used to identify the lease. Please "+
		"make sure to group by name.", "name")
	slowPath = counter("leader_election_slowpath_total", "Total number of slow path exercised in renewing leader "+
		"leases. 'name' is the string used to identify the lease. Please make sure to group by name.", "name")
)

func init() { leaderelection.SetProvider(leaderMetrics{}) }

func gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	return registered(prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels))
}

func counter(name, help string, labels ...string) *prometheus.CounterVec {
	return registered(prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels))
}

func histogram(name, help string, labels ...string) *prometheus.HistogramVec {
	return registered(prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(1e-5, 10, 8),
	}, labels))
}

func registered[C prometheus.Collector](c C) C {
	registry.MustRegister(c)
	return c
}

// queueMetrics gives each work queue its series.
type queueMetrics struct{}

func (queueMetrics) NewDepthMetric(name string) workqueue.GaugeMetric {
	return depth.WithLabelValues(name)
}

func (queueMetrics) NewAddsMetric(name string) workqueue.CounterMetric {
	return adds.WithLabelValues(name)
}

func (queueMetrics) NewRetriesMetric(name string) workqueue.CounterMetric {
	return retries.WithLabelValues(name)
}

func (queueMetrics) NewLatencyMetric(name string) workqueue.HistogramMetric {
	return waited.WithLabelValues(name)
}

func (queueMetrics) NewWorkDurationMetric(name string) workqueue.HistogramMetric {
	return worked.WithLabelValues(name)
}

func (queueMetrics) NewUnfinishedWorkSecondsMetric(name string) workqueue.SettableGaugeMetric {
	return unfinished.WithLabelValues(name)
}

func (queueMetrics) NewLongestRunningProcessorSecondsMetric(name string) workqueue.SettableGaugeMetric {
	return longest.WithLabelValues(name)
}

type leaderMetrics struct{}

func (leaderMetrics) NewLeaderMetric() leaderelection.LeaderMetric { return leaderMetrics{} }
func (leaderMetrics) On(name string)                               { leads.WithLabelValues(name).Set(1) }
func (leaderMetrics) Off(name string)                              { leads.WithLabelValues(name).Set(0) }
func (leaderMetrics) SlowpathExercised(name string)                { slowPath.WithLabelValues(name).Inc() }
