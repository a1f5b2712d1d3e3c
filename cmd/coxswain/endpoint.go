package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/apiserver/health"
	"github.com/coxswain-dev/coxswain/apiserver/pki"
	"github.com/coxswain-dev/coxswain/internal/client/delegatedauth"
	"github.com/coxswain-dev/coxswain/internal/zpages"
)

// endpointFlags configure the endpoint of a component in a process of its own. It serves health, metrics and profiles,
// as kube-scheduler does on its secure port: over HTTPS and, except for health, only to authorized users.
type endpointFlags struct {
	address           string
	certFile, keyFile string
	caFile            string
	open              []string
	profiling         bool
	tls               tlsFlags

	component string
	flags     *pflag.FlagSet
	ready     func() bool // for /readyz, if not nil
}

func (f *endpointFlags) add(fs *pflag.FlagSet, component, address string) {
	f.component, f.flags = component, fs
	fs.StringVar(&f.address, "metrics-bind-address", address,
		`where to serve /healthz, /metrics and /debug/pprof over HTTPS; "" for nowhere`)
	fs.StringVar(&f.certFile, "tls-cert-file", "",
		"serving certificate; if empty, a self-signed one that is made at the start")
	fs.StringVar(&f.keyFile, "tls-private-key-file", "", "key of --tls-cert-file")
	fs.StringVar(&f.caFile, "client-ca-file", "",
		"CAs of accepted client certificates; the kubeconfig's CA if empty")
	fs.StringSliceVar(&f.open, "authorization-always-allow-paths", delegatedauth.Healthy,
		"paths that need no credentials; * at the end matches any suffix")
	fs.BoolVar(&f.profiling, "profiling", true, "serve profiles at /debug/pprof/")
	f.tls.add(fs)
}

// config returns the TLS configuration of the endpoint.
func (f *endpointFlags) config() (*tls.Config, error) {
	cert, err := f.certificate()
	if err != nil {
		return nil, err
	}
	c := apiserver.TLSConfig(cert)
	return c, f.tls.apply(c)
}

func (f *endpointFlags) certificate() (pki.Certificate, error) {
	if (f.certFile == "") != (f.keyFile == "") {
		return nil, errors.New("--tls-cert-file and --tls-private-key-file go together")
	}
	if f.certFile != "" {
		cert, err := pki.CertificateFiles(slog.Default(), f.certFile, f.keyFile)
		if err != nil {
			return nil, fmt.Errorf("--tls-cert-file: %w", err)
		}
		return cert, nil
	}
	ca, err := pki.NewCA()
	if err != nil {
		return nil, err
	}
	hosts := []string{"localhost", "127.0.0.1", "::1"}
	if name, err := os.Hostname(); err == nil {
		hosts = append(hosts, name)
	}
	if host, _, err := net.SplitHostPort(f.address); err == nil && host != "" {
		hosts = append(hosts, host)
	}
	return ca.Serving(hosts...)
}

// clientCAs returns the CAs of client certificates: by default the CA of the API server's certificate, which also signs
// its clients' certificates.
func (f *endpointFlags) clientCAs(config *rest.Config) (*x509.CertPool, error) {
	pem := config.CAData
	file := f.caFile
	if file == "" && len(pem) == 0 {
		file = config.CAFile
	}
	if file != "" {
		var err error
		if pem, err = os.ReadFile(file); err != nil {
			return nil, fmt.Errorf("--client-ca-file: %w", err)
		}
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) && file != "" {
		return nil, fmt.Errorf("--client-ca-file: %s has no certificates", file)
	}
	return pool, nil
}

// serve serves a component's health, metrics and profiles, and additional handlers by path, until stop is called.
func (f *endpointFlags) serve(config *rest.Config, metrics prometheus.Gatherer, more map[string]http.Handler) (
	stop func(), err error) {
	tc, err := f.config()
	if err != nil {
		return nil, err
	}
	clients, err := f.clientCAs(config)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	guard := &delegatedauth.Guard{ClientCAs: clients, Clock: clock.RealClock{}}
	ln, err := listen("metrics-bind-address", f.address)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	server := newEndpoint(ctx, guard.Protect(client, f.open, f.routes(metrics, more)))
	server.TLSConfig = tc
	server.DisableGeneralOptionsHandler = true // it would respond without authentication
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.ServeTLS(ln, "", ""); !errors.Is(err, http.ErrServerClosed) {
			slog.Warn("failed to serve metrics", "err", err)
		}
	}()
	return func() { cancel(); _ = server.Close(); <-ended }, nil
}

// routes returns the handlers of all paths, for serve to protect by authorization.
func (f *endpointFlags) routes(metrics prometheus.Gatherer, more map[string]http.Handler) http.Handler {
	mux := http.NewServeMux()
	reporter := health.NewReporter(slog.Default())
	for endpoint, checks := range map[string][]health.Check{"healthz": {health.Ping}, "livez": {health.Ping},
		"readyz": {health.Ping, {Name: "ready", Run: f.isReady}}} {
		mux.HandleFunc("/"+endpoint, func(w http.ResponseWriter, r *http.Request) {
			code, text := reporter.Report(r.Context(), r.URL.Query(), endpoint, checks)
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			w.WriteHeader(code)
			_, _ = w.Write(text)
		})
	}
	all := append(prometheus.Gatherers{metrics}, processMetrics...)
	mux.Handle("/metrics", promhttp.HandlerFor(all, promhttp.HandlerOpts{}))
	mux.Handle("/metrics/slis", promhttp.HandlerFor(reporter, promhttp.HandlerOpts{}))
	if f.profiling {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	for path, h := range more {
		mux.Handle(path, h)
	}
	pages := zpages.Component{Name: f.component, Version: apiserver.VersionInfo(), Start: time.Now(),
		Paths: []string{"/flagz", "/healthz", "/livez", "/metrics", "/metrics/slis", "/readyz", "/statusz"},
		Flags: zpages.Flags(f.flags)}
	mux.HandleFunc("/statusz", pages.Statusz)
	mux.HandleFunc("/flagz", pages.Flagz)
	return mux
}

func (f *endpointFlags) isReady(context.Context) error {
	if f.ready != nil && !f.ready() {
		return errors.New("not ready")
	}
	return nil
}

// newEndpoint returns a server for the endpoint of a component. Its timeouts prevent slow clients from holding
// connections.
func newEndpoint(ctx context.Context, handler http.Handler) *http.Server {
	return &http.Server{
		Handler: handler, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second,
		IdleTimeout: 90 * time.Second, MaxHeaderBytes: 64 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(slog.Default().Handler(), slog.LevelDebug),
	}
}
