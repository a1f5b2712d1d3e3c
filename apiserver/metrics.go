package apiserver

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/cel"
	"github.com/coxswain-dev/coxswain/apiserver/metrics"
	"github.com/coxswain-dev/coxswain/internal/zpages"
)

// newRegistry returns the registry of the server's own metrics.
func (s *Server) newRegistry() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	objects := metrics.Objects{Registry: s.Registry,
		Count: func(res *api.Resource) int { return s.collection(res).Count() }}
	registry.MustRegister(zpages.BuildInfo(VersionInfo()), s.metrics, s.conversions, objects, s.lifetimes, s.admission,
		s.Store.Collector(), s.limiter.Memory,
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "coxswain_cel_compilations_total",
			Help: "Number of CEL expressions that the process has begun to compile."},
			func() float64 { return float64(cel.Compilations()) }),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return registry
}

// labelsOf returns the labels of a request on a resource.
func labelsOf(r *request) metrics.Request {
	labels := metrics.Request{
		Verb: metrics.Verb(r.verb), Group: r.res.Group, Version: r.res.Version, Resource: r.res.Plural,
		Subresource: r.subresource, Scope: "cluster",
	}
	switch {
	case r.name != "" || r.verb == "create":
		labels.Scope = "resource"
	case r.namespace != "":
		labels.Scope = "namespace"
	}
	if r.query.Get("dryRun") != "" {
		labels.DryRun = "All" // the only value
	}
	return labels
}

func (s *Server) serveMetrics(w http.ResponseWriter, r *http.Request) error {
	all := append(prometheus.Gatherers{s.registry}, s.Metrics...)
	promhttp.HandlerFor(all, promhttp.HandlerOpts{}).ServeHTTP(w, r)
	return nil
}

// serveSLIs serves the results of health checks.
func (s *Server) serveSLIs(w http.ResponseWriter, r *http.Request) error {
	promhttp.HandlerFor(s.health, promhttp.HandlerOpts{}).ServeHTTP(w, r)
	return nil
}

func (s *Server) serveStatusz(w http.ResponseWriter, r *http.Request) error {
	s.zpages().Statusz(w, r)
	return nil
}

func (s *Server) serveFlagz(w http.ResponseWriter, r *http.Request) error {
	s.zpages().Flagz(w, r)
	return nil
}
