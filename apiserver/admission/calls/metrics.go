package calls

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/coxswain-dev/coxswain/internal/series"
)

// maxSeries limits the combinations of labels of each metric, since the names of webhooks are their authors'
// choice.
const maxSeries = 256

// maxCode is the largest HTTP status with a series of its own, as in kube-apiserver.
const maxCode = 600

// The reasons for a rejection at a webhook, as in apiserver_admission_webhook_rejection_count.
const (
	CallingWebhookError    = "calling_webhook_error"
	APIServerInternalError = "apiserver_internal_error"
	NoError                = "no_error"
)

type (
	callLabels struct {
		name, kind, operation string
		rejected              bool
	}
	requestLabels struct {
		callLabels
		code int
	}
	rejectionLabels struct {
		name, kind, operation, errorType string
		code                             int
	}
	openLabels struct{ name, kind string }
	// conditionLabels.of is the kind of object with match conditions: webhook or policy.
	conditionLabels struct{ name, of, kind, operation string }
)

func (l callLabels) values() []string {
	return []string{l.name, l.kind, l.operation, strconv.FormatBool(l.rejected)}
}

func (l requestLabels) values() []string {
	return []string{l.name, l.kind, l.operation, strconv.Itoa(l.code), strconv.FormatBool(l.rejected)}
}

func (l rejectionLabels) values() []string {
	return []string{l.name, l.kind, l.operation, l.errorType, strconv.Itoa(l.code)}
}

func (l openLabels) values() []string { return []string{l.name, l.kind} }

func (l conditionLabels) values() []string { return []string{l.name, l.of, l.kind, l.operation} }

// labels are the values of a metric's labels, in the metric's order.
type labels interface {
	comparable
	values() []string
}

// counters is a family of counters.
type counters[L labels] struct {
	vec *prometheus.CounterVec
	of  *series.Recent[L, prometheus.Counter]
}

func newCounters[L labels](name, help string, names ...string) counters[L] {
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "apiserver_admission_" + name, Help: help}, names)
	return counters[L]{vec, series.NewRecent(maxSeries,
		func(l L) prometheus.Counter { return vec.WithLabelValues(l.values()...) },
		func(l L) { vec.DeleteLabelValues(l.values()...) })}
}

// histograms is a family of histograms.
type histograms[L labels] struct {
	vec *prometheus.HistogramVec
	of  *series.Recent[L, prometheus.Observer]
}

func newHistograms[L labels](name, help string, buckets []float64, names ...string) histograms[L] {
	vec := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "apiserver_admission_" + name, Help: help,
		Buckets: buckets}, names)
	return histograms[L]{vec, series.NewRecent(maxSeries,
		func(l L) prometheus.Observer { return vec.WithLabelValues(l.values()...) },
		func(l L) { vec.DeleteLabelValues(l.values()...) })}
}

// metrics have kube-apiserver's names and labels.
type metrics struct {
	durations  histograms[callLabels]
	requests   counters[requestLabels]
	rejections counters[rejectionLabels]
	open       counters[openLabels]

	evaluations histograms[conditionLabels]
	errors      counters[conditionLabels]
	exclusions  counters[conditionLabels]
}

func newMetrics() metrics {
	condition := []string{"name", "kind", "type", "operation"}
	return metrics{
		durations: newHistograms[callLabels]("webhook_admission_duration_seconds",
			"Admission webhook latency histogram in seconds, identified by name and broken out for each operation "+
				"and API resource and type (validate or admit).",
			[]float64{0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10, 25}, "name", "type", "operation", "rejected"),
		requests: newCounters[requestLabels]("webhook_request_total",
			"Admission webhook request total, identified by name and broken out for each admission type (validating "+
				"or admit) and operation.", "name", "type", "operation", "code", "rejected"),
		rejections: newCounters[rejectionLabels]("webhook_rejection_count",
			"Admission webhook rejection count, identified by name and broken out for each admission type (validating "+
				"or admit) and operation.", "name", "type", "operation", "error_type", "rejection_code"),
		open: newCounters[openLabels]("webhook_fail_open_count",
			"Admission webhook fail open count, identified by name and broken out for each admission type "+
				"(validating or admit).", "name", "type"),
		evaluations: newHistograms[conditionLabels]("match_condition_evaluation_seconds",
			"Admission match condition evaluation time in seconds, identified by name and broken out for each kind "+
				"containing matchConditions (webhook or policy), operation and type (validate or admit).",
			[]float64{0.001, 0.005, 0.01, 0.025, 0.1, 0.2, 0.25}, condition...),
		errors: newCounters[conditionLabels]("match_condition_evaluation_errors_total",
			"Admission match condition evaluation errors count, identified by name of resource containing the match "+
				"condition and broken out for each kind containing matchConditions (webhook or policy), "+
				"operation and admission type (validate or admit).", condition...),
		exclusions: newCounters[conditionLabels]("match_condition_exclusions_total",
			"Admission match condition evaluation exclusions count, identified by name of resource containing the "+
				"match condition and broken out for each kind containing matchConditions (webhook or policy), "+
				"operation and admission type (validate or admit).", condition...),
	}
}

func (m *metrics) done(c *Call) {
	code := min(c.Code, maxCode)
	kind := string(c.Type)
	called := callLabels{c.Webhook, kind, c.Operation, c.Rejected}
	m.durations.of.Of(called).Observe(c.Took.Seconds())
	m.requests.of.Of(requestLabels{called, code}).Inc()
	if c.Rejected && !c.Canceled {
		m.rejections.of.Of(rejectionLabels{c.Webhook, kind, c.Operation, c.ErrorType, code}).Inc()
	}
	if c.Outcome == Failed && !c.Rejected && !c.Canceled {
		m.open.of.Of(openLabels{c.Webhook, kind}).Inc()
	}
}

// Conditions describes an evaluation of match conditions.
type Conditions struct {
	// Name is the webhook's or the policy's, Of is "webhook" or "policy", and Type the type of admission.
	Name, Of  string
	Type      Type
	Operation string
	Took      time.Duration
	// Errors is the number of conditions that could not be evaluated. Excluded means that the conditions exclude
	// the request.
	Errors   int
	Excluded bool
}

// Evaluated counts an evaluation of match conditions.
func (l *Log) Evaluated(c Conditions) {
	evaluated := conditionLabels{c.Name, c.Of, string(c.Type), c.Operation}
	l.metrics.evaluations.of.Of(evaluated).Observe(c.Took.Seconds())
	if c.Errors > 0 {
		l.metrics.errors.of.Of(evaluated).Add(float64(c.Errors))
	}
	if c.Excluded {
		if c.Type == Validating { // this metric alone has the name of the plugin's method
			evaluated.kind = "validate"
		}
		l.metrics.exclusions.of.Of(evaluated).Inc()
	}
}

// collectors returns all families.
func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.durations.vec, m.requests.vec, m.rejections.vec, m.open.vec, m.evaluations.vec,
		m.errors.vec, m.exclusions.vec}
}

// Describe implements prometheus.Collector.
func (l *Log) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range l.metrics.collectors() {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (l *Log) Collect(ch chan<- prometheus.Metric) {
	for _, c := range l.metrics.collectors() {
		c.Collect(ch)
	}
}
