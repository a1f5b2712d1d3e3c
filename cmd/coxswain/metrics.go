package main

import (
	"context"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	restmetrics "k8s.io/client-go/tools/metrics"

	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/internal/zpages"
)

// clientMetrics has the metrics of this process's requests to API servers, with Kubernetes' names.
var clientMetrics = prometheus.NewRegistry()

// processMetrics has the metrics of the process as a whole: its clients, the Go runtime and the operating system. The
// default registry is not used, since it has the metrics of etcd's server, which is linked into the program.
var processMetrics = prometheus.Gatherers{clientMetrics, newOwnMetrics()}

func newOwnMetrics() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(zpages.BuildInfo(apiserver.VersionInfo()), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

func init() {
	controllers.ReportLeaderElection()
	histogram := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		o := prometheus.HistogramOpts{Name: "rest_client_" + name, Help: help + " Broken down by verb and host.",
			Buckets: buckets}
		h := prometheus.NewHistogramVec(o, []string{"verb", "host"})
		clientMetrics.MustRegister(h)
		return h
	}
	counter := func(name, help string, labels ...string) counted {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "rest_client_" + name, Help: help}, labels)
		clientMetrics.MustRegister(c)
		return counted{c}
	}
	seconds := []float64{0.005, 0.025, 0.1, 0.5, 1, 4, 15, 60}
	bytes := []float64{256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20}
	restmetrics.Register(restmetrics.RegisterOpts{
		RequestLatency: latency{histogram("request_duration_seconds", "Request latency in seconds.", seconds)},
		RateLimiterLatency: latency{histogram("rate_limiter_duration_seconds",
			"Client side rate limiter latency in seconds.", seconds)},
		RequestSize:  size{histogram("request_size_bytes", "Request size in bytes.", bytes)},
		ResponseSize: size{histogram("response_size_bytes", "Response size in bytes.", bytes)},
		RequestResult: counter("requests_total",
			"Number of HTTP requests, partitioned by status code, method, and host.", "code", "method", "host"),
		RequestRetry: counter("request_retries_total",
			"Number of request retries, partitioned by status code, verb, and host.", "code", "verb", "host"),
	})
}

// latency, size and counted receive client-go's observations.
type (
	latency struct{ *prometheus.HistogramVec }
	size    struct{ *prometheus.HistogramVec }
	counted struct{ *prometheus.CounterVec }
)

func (l latency) Observe(_ context.Context, verb string, u url.URL, took time.Duration) {
	l.WithLabelValues(verb, u.Host).Observe(took.Seconds())
}

func (s size) Observe(_ context.Context, verb, host string, bytes float64) {
	s.WithLabelValues(verb, host).Observe(bytes)
}

func (c counted) Increment(_ context.Context, code, method, host string) {
	c.WithLabelValues(code, method, host).Inc()
}

func (c counted) IncrementRetry(_ context.Context, code, verb, host string) {
	c.WithLabelValues(code, verb, host).Inc()
}
