package controllers

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/leaderelection"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
	"github.com/coxswain-dev/coxswain/internal/client/workqueue"
)

// Metrics returns the registry of this process, with the names that dashboards for kube-controller-manager use. It has
// the metrics of work queues and of leader election of all runs, and those of the runs that have it in their Options.
func Metrics() *prometheus.Registry { return registry }

var (
	registry = prometheus.NewRegistry()

	queues = registered(workqueue.NewMetrics())

	leads = gauge("leader_election_master_status", "Gauge of if the reporting system is master of the relevant "+
		"lease, 0 indicates backup, 1 indicates master. 'name' is the string used to identify the lease. Please "+
		"make sure to group by name.", "name")
	slowPath = counter("leader_election_slowpath_total", "Total number of slow path exercised in renewing leader "+
		"leases. 'name' is the string used to identify the lease. Please make sure to group by name.", "name")
)

// ReportLeaderElection adds the leader elections of this process to Metrics. client-go accepts only the first
// provider in a process, so programs call this at their start; a test's process may have another provider.
func ReportLeaderElection() { leaderelection.SetProvider(leaderMetrics{}) }

// runningMetrics returns the metrics for a run of these controllers.
func runningMetrics(enabled []entry) *controller.Metrics {
	m := &controller.Metrics{}
	m.State("running_managed_controllers", "Indicates where instances of a controller are currently running",
		[]string{"name", "manager"}, func(add func(float64, ...string)) {
			for _, e := range enabled {
				add(1, e.alias, "kube-controller-manager")
			}
		})
	return m
}

func gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	return registered(prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels))
}

func counter(name, help string, labels ...string) *prometheus.CounterVec {
	return registered(prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels))
}

func registered[C prometheus.Collector](c C) C {
	registry.MustRegister(c)
	return c
}

type leaderMetrics struct{}

func (leaderMetrics) NewLeaderMetric() leaderelection.LeaderMetric { return leaderMetrics{} }
func (leaderMetrics) On(name string)                               { leads.WithLabelValues(name).Set(1) }
func (leaderMetrics) Off(name string)                              { leads.WithLabelValues(name).Set(0) }
func (leaderMetrics) SlowpathExercised(name string)                { slowPath.WithLabelValues(name).Inc() }
