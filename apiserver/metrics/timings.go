package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// timings are the families of histograms; timing has the histograms of one combination of labels.
type (
	timings struct{ duration, sli, size *prometheus.HistogramVec }
	timing  struct{ duration, sli, size prometheus.Observer }
)

func newTimings() *timings {
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		o := prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets, ConstLabels: ours}
		return prometheus.NewHistogramVec(o, append(labels, byRequest...))
	}
	seconds := []float64{0.001, 0.005, 0.025, 0.1, 0.5, 1, 5, 30} // Kubernetes' SLOs need 1, 5 and 30
	return &timings{
		duration: histogram("apiserver_request_duration_seconds",
			"Response latency distribution in seconds for each verb, dry run value, group, version, resource, "+
				"subresource, "+
				"scope and component.", seconds, "dry_run"),
		sli: histogram("apiserver_request_sli_duration_seconds",
			"Response latency distribution (not counting webhook duration and priority & fairness queue wait "+
				"times) in "+
				"seconds for each verb, group, version, resource, subresource, scope and component.", seconds),
		size: histogram("apiserver_response_sizes",
			"Response size distribution in bytes for each group, version, verb, resource, subresource, scope and "+
				"component.",
			prometheus.ExponentialBuckets(1000, 10, 5)),
	}
}

// begin makes the histograms of a combination. A dry run has only the one with a label for dry runs.
func (f *timings) begin(r Request) *timing {
	labels := r.labels()
	t := &timing{duration: f.duration.WithLabelValues(append([]string{r.DryRun}, labels...)...)}
	if r.DryRun == "" {
		t.sli, t.size = f.sli.WithLabelValues(labels...), f.size.WithLabelValues(labels...)
	}
	return t
}

func (f *timings) end(r Request) {
	labels := r.labels()
	f.duration.DeleteLabelValues(append([]string{r.DryRun}, labels...)...)
	if r.DryRun == "" {
		f.sli.DeleteLabelValues(labels...)
		f.size.DeleteLabelValues(labels...)
	}
}

func (t *timing) observe(took, waited time.Duration, bytes int64) {
	t.duration.Observe(took.Seconds())
	if t.sli != nil {
		t.sli.Observe((took - waited).Seconds())
		t.size.Observe(float64(bytes))
	}
}
