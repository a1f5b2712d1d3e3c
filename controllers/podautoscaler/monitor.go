package podautoscaler

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

const subsystem = "horizontal_pod_autoscaler_controller"

// monitor has kube-controller-manager's metrics of autoscalers.
type monitor struct {
	reconciliations, computations func() *prometheus.CounterVec
	duration, computation         func() *prometheus.HistogramVec
}

func (a *autoscaler) newMonitor(m *controller.Metrics) *monitor {
	m.State(subsystem+"_num_horizontal_pod_autoscalers", "Current number of controlled HPA objects.", nil,
		func(add func(float64, ...string)) {
			all, _ := a.hpas.List(labels.Everything()) // a lister returns no errors
			add(float64(len(all)))
		})
	m.State(subsystem+"_desired_replicas", "Current desired replica count for HPA objects.",
		[]string{"namespace", "hpa_name"}, func(add func(float64, ...string)) {
			all, _ := a.hpas.List(labels.Everything())
			for _, h := range all {
				add(float64(h.Status.DesiredReplicas), h.Namespace, h.Name)
			}
		})
	const actions = " The label 'action' should be either 'scale_down', 'scale_up', or 'none'. The label 'error' " +
		"should be either 'spec', 'internal', or 'none'."
	buckets := prometheus.ExponentialBuckets(0.001, 2, 15)
	return &monitor{
		reconciliations: m.Counter(subsystem+"_reconciliations_total",
			"Number of reconciliations of HPA controller."+actions, "action", "error"),
		duration: m.Histogram(subsystem+"_reconciliation_duration_seconds",
			"The time(seconds) that the HPA controller takes to reconcile once."+actions, buckets, "action", "error"),
		computations: m.Counter(subsystem+"_metric_computation_total", "Number of metric computations."+actions+
			" The label 'metric_type' corresponds to HPA.spec.metrics[*].type", "action", "error", "metric_type"),
		computation: m.Histogram(subsystem+"_metric_computation_duration_seconds",
			"The time(seconds) that the HPA controller takes to calculate one metric."+actions+
				" The label 'metric_type' corresponds to HPA.spec.metrics[*].type", buckets,
			"action", "error", "metric_type"),
	}
}

// invalidSpec is an error that only a change of the autoscaler's spec can remove.
type invalidSpec struct{ error }

func (e invalidSpec) Unwrap() error { return e.error }

func actionLabel(current, desired int32) string {
	switch {
	case desired > current:
		return "scale_up"
	case desired < current:
		return "scale_down"
	}
	return "none"
}

func errorLabel(err error) string {
	switch {
	case err == nil:
		return "none"
	case errors.As(err, new(invalidSpec)):
		return "spec"
	}
	return "internal"
}

func (m *monitor) reconciled(action string, took time.Duration, err error) {
	m.reconciliations().WithLabelValues(action, errorLabel(err)).Inc()
	m.duration().WithLabelValues(action, errorLabel(err)).Observe(took.Seconds())
}

// measured computes the replica count of one metric, and counts the computation.
func (s *session) measured(ctx context.Context, spec *autoscalingv2.MetricSpec) (proposal, error) {
	began := s.env.Clock.Now()
	p, err := s.propose(ctx, spec)
	action, kind := "none", string(spec.Type)
	if err == nil {
		action = actionLabel(s.target.Spec.Replicas, p.replicas)
	}
	if _, ok := sources[spec.Type]; !ok {
		kind = "" // only known types have series
	}
	s.monitor.computations().WithLabelValues(action, errorLabel(err), kind).Inc()
	s.monitor.computation().WithLabelValues(action, errorLabel(err), kind).Observe(
		s.env.Clock.Since(began).Seconds())
	return p, err
}
