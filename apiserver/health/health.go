// Package health is the text of /livez, /readyz and /healthz, in the form of kube-apiserver. Checks come in, and a code
// and a text go out. It knows neither HTTP handlers nor the server.
package health

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// timeout is how long the checks of one request may take together.
const timeout = 5 * time.Second

// Check is one named part of an endpoint. Run returns nil if the part is healthy. It may be called concurrently.
type Check struct {
	Name string
	Run  func(ctx context.Context) error
}

// Ping is the check that an answer arrives at all.
var Ping = Check{"ping", func(context.Context) error { return nil }}

// Reporter runs checks, and gathers the metrics of their results for /metrics/slis (KEP-3466), which Kubernetes keeps
// apart to be scraped more often. It is safe for concurrent use.
type Reporter struct {
	prometheus.Gatherer
	log     *slog.Logger
	healthy *prometheus.GaugeVec
	results *prometheus.CounterVec
}

// NewReporter returns a Reporter that has run no check yet.
func NewReporter(log *slog.Logger) *Reporter {
	registry := prometheus.NewRegistry()
	r := &Reporter{Gatherer: registry, log: log,
		healthy: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "kubernetes_healthcheck",
			Help: "This metric records the result of a single healthcheck."}, []string{"name", "type"}),
		results: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kubernetes_healthchecks_total",
			Help: "This metric records the results of all healthcheck."}, []string{"name", "status", "type"}),
	}
	registry.MustRegister(r.healthy, r.results)
	return r
}

// run runs a check and counts its result.
func (r *Reporter) run(ctx context.Context, endpoint string, c Check) error {
	err := c.Run(ctx)
	value, status := 1.0, "success"
	if err != nil {
		value, status = 0, "error"
		r.log.Warn("failed to pass a health check", "endpoint", endpoint, "check", c.Name, "err", err)
	}
	r.healthy.WithLabelValues(c.Name, endpoint).Set(value)
	r.results.WithLabelValues(c.Name, status, endpoint).Inc()
	return err
}

// Report runs the checks of an endpoint, one after the other, and returns the code and the text of the answer: "ok", or
// one line per check if one has failed or the client asks for ?verbose. Checks that the client names by ?exclude are
// not run. The log gets the errors, which clients do not see: the endpoints are open to everyone.
func (r *Reporter) Report(ctx context.Context, query url.Values, endpoint string, checks []Check) (int, []byte) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	excluded := query["exclude"]
	var lines bytes.Buffer
	failed := false
	for _, c := range checks {
		if slices.Contains(excluded, c.Name) {
			fmt.Fprintf(&lines, "[+]%s excluded: ok\n", c.Name)
			continue
		}
		if r.run(ctx, endpoint, c) != nil {
			failed = true
			fmt.Fprintf(&lines, "[-]%s failed: reason withheld\n", c.Name)
			continue
		}
		fmt.Fprintf(&lines, "[+]%s ok\n", c.Name)
	}
	switch {
	case failed:
		fmt.Fprintf(&lines, "%s check failed\n", endpoint)
		return http.StatusInternalServerError, lines.Bytes()
	case !query.Has("verbose"):
		return http.StatusOK, []byte("ok")
	}
	fmt.Fprintf(&lines, "%s check passed\n", endpoint)
	return http.StatusOK, lines.Bytes()
}
