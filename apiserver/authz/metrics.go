package authz

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
)

// metrics have the names of kube-apiserver's.
// https://kubernetes.io/docs/reference/instrumentation/metrics/
type metrics struct {
	decisions    *prometheus.CounterVec
	evaluations  *prometheus.CounterVec
	duration     *prometheus.HistogramVec
	failOpen     *prometheus.CounterVec
	matchErrors  *prometheus.CounterVec
	exclusions   *prometheus.CounterVec
	matchSeconds *prometheus.HistogramVec
}

const metricPrefix = "apiserver_authorization_"

func newMetrics() *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: metricPrefix + name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: metricPrefix + name, Help: help,
			Buckets: buckets},
			labels)
	}
	return &metrics{
		decisions: counter("decisions_total", "Total number of terminal decisions made by an authorizer split by "+
			"authorizer type, name, and decision.", "type", "name", "decision"),
		evaluations: counter("webhook_evaluations_total", "Round-trips to authorization webhooks.", "name", "result"),
		duration: histogram("webhook_duration_seconds", "Request latency in seconds.", prometheus.DefBuckets,
			"name", "result"),
		failOpen: counter("webhook_evaluations_fail_open_total",
			"NoOpinion results due to webhook timeout or error.", "name", "result"),
		matchErrors: counter("match_condition_evaluation_errors_total", "Total number of errors when an "+
			"authorization webhook encounters a match condition error split by authorizer type and name.",
			"type", "name"),
		exclusions: counter("match_condition_exclusions_total", "Total number of exclusions when an authorization "+
			"webhook is skipped because match conditions exclude it.", "type", "name"),
		matchSeconds: histogram("match_condition_evaluation_seconds", "Authorization match condition evaluation "+
			"time in seconds, split by authorizer type and name.",
			[]float64{0.001, 0.005, 0.01, 0.025, 0.1, 0.2, 0.25}, "type", "name"),
	}
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.decisions, m.evaluations, m.duration, m.failOpen, m.matchErrors, m.exclusions,
		m.matchSeconds}
}

// The results of a call to a webhook.
const (
	resultSuccess  = "success"
	resultTimeout  = "timeout"
	resultCanceled = "canceled"
	resultError    = "error"
)

func resultOf(ctx context.Context, err error) string {
	var timeout net.Error
	switch {
	case err == nil:
		return resultSuccess
	case errors.Is(ctx.Err(), context.Canceled):
		return resultCanceled
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return resultTimeout
	}
	return resultError
}

// asked records a round trip to a webhook.
func (m *metrics) asked(name, result string, took time.Duration) {
	m.evaluations.WithLabelValues(name, result).Inc()
	m.duration.WithLabelValues(name, result).Observe(took.Seconds())
}

// counted counts the decisions of an authorizer.
type counted struct {
	Authorizer
	allowed, denied prometheus.Counter
}

func (m *metrics) counted(kind, name string, authorizer Authorizer) counted {
	return counted{authorizer, m.decisions.WithLabelValues(kind, name, "allowed"),
		m.decisions.WithLabelValues(kind, name, "denied")}
}

// Authorize implements Authorizer.
func (c counted) Authorize(ctx context.Context, a *Attributes) (Decision, string, error) {
	d, reason, err := c.Authorizer.Authorize(ctx, a)
	switch d {
	case Allow:
		c.allowed.Inc()
	case Deny:
		c.denied.Inc()
	}
	return d, reason, err
}

// RulesFor implements Lister.
func (c counted) RulesFor(user *authn.User, namespace string) ([]rbacv1.PolicyRule, bool, error) {
	if lister, ok := c.Authorizer.(Lister); ok {
		return lister.RulesFor(user, namespace)
	}
	return nil, false, nil
}
