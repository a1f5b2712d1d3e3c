// Package ingress implements an ingress controller: it accepts HTTP and HTTPS from outside and forwards the requests to
// pods.
//
// Inputs are Ingresses, IngressClasses, Services, EndpointSlices and the Secrets of Ingresses from the API server, and
// connections from clients. Outputs are requests to endpoints, the status of Ingresses, and Events on Ingresses that
// cannot be served as written. The controller and the proxy share one pointer, to the current routing table, which is
// immutable:
//
//	controller.go   applies changes, in one goroutine, and replaces the table
//	class.go        the Ingresses that are served
//	routing.go      the rules of all Ingresses, and conflicts between them; builds tables
//	table.go        routing tables: from a host and a path to a route
//	annotations.go  settings of requests by annotations
//	upstream.go     a Service's port and its endpoints; load balancing
//	secrets.go      certificates, each watched by its Secret's name
//	status.go       the addresses in the status of Ingresses
//
//	serve.go        the servers, from start to shutdown
//	listen.go       limits on connections and stalled clients
//	proxy.go        one request
//	forward.go      the headers that describe the client to endpoints
//	transport.go    connections to endpoints, and retries
//	accesslog.go, metrics.go
//
// It uses the API server as any other client, and must not import api, storage, apiserver, node or controllers.
package ingress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
)

const (
	// ClassName is the default of Options.ClassName.
	ClassName = "coxswain"
	// ControllerName is the default of Options.ControllerName: the spec.controller of IngressClasses.
	ControllerName = "coxswain.dev/ingress"
)

// Options configure an ingress controller. At least one of HTTP and HTTPS is required, except with StatusOnly.
type Options struct {
	// StatusOnly makes the controller write the status and the Events of Ingresses and serve no requests.
	StatusOnly bool
	// HTTP and HTTPS are the listeners for clients; nil disables one. Run closes them.
	HTTP, HTTPS net.Listener
	// Health, if not nil, is the listener for probes: /healthz returns 200 while requests are served, and 503 before
	// that and from the beginning of the shutdown. Run closes it.
	Health net.Listener
	// HideHTTPSPort makes redirects omit the port of HTTPS, because a port mapping in front of this process uses 443.
	HideHTTPSPort bool

	// ClassName is the class name by which Ingresses select this controller; empty selects "coxswain".
	ClassName string
	// ControllerName is the spec.controller of this controller's IngressClasses; empty selects "coxswain.dev/ingress".
	ControllerName string
	// CreateClass creates the IngressClass ClassName if it does not exist.
	CreateClass bool
	// WatchNamespace is the only namespace whose Ingresses are served; empty selects all namespaces.
	WatchNamespace string
	// HostPerNamespace reserves a host for the namespace of its oldest Ingress. Otherwise Ingresses of several
	// namespaces may share a host with different paths.
	HostPerNamespace bool

	// PublishAddresses are written to the status of Ingresses: IP addresses or host names.
	PublishAddresses []string
	// PublishService, if its name is not empty, is a Service whose addresses are written to the status of Ingresses.
	PublishService types.NamespacedName
	// ClearStatus removes the addresses from the status when Run ends. Set it only in the last of several processes.
	ClearStatus bool

	// DefaultCertificate is the Secret with the certificate for hosts without one. If its name is empty, a self-signed
	// certificate is created at the start.
	DefaultCertificate types.NamespacedName
	// TrustedProxies are the clients whose X-Forwarded-For, -Host, -Proto and -Port are trusted.
	TrustedProxies []netip.Prefix

	// MaxConnections and MaxConnectionsPerClient limit open connections, in total and per IPv4 address or IPv6 /64;
	// zero selects 16384 and 1024. Further connections are closed at once.
	MaxConnections, MaxConnectionsPerClient int
	// HeaderTimeout limits the time for a request's header, BodyTimeout and WriteTimeout each read of its body and each
	// write of its response, IdleTimeout the time between requests; zero selects 10 s, 60 s, 60 s and 75 s.
	HeaderTimeout, BodyTimeout, WriteTimeout, IdleTimeout time.Duration
	// ShutdownDelay is how long requests are served after /healthz returns 503, so that load balancers notice.
	ShutdownDelay time.Duration
	// ShutdownGracePeriod is how long requests may take after that; zero selects 30 s.
	ShutdownGracePeriod time.Duration

	// AccessLog, if not nil, receives a line of JSON for each request. Writes are not concurrent.
	AccessLog io.Writer
	// Ready, if not nil, is called once requests are served by all Ingresses of the API server.
	Ready func()
	// Clock is the time of retries and log lines; nil selects the real clock. Deadlines of sockets always use the real
	// one.
	Clock clock.WithTickerAndDelayedExecution
	// Log receives the log lines; nil selects slog.Default.
	Log *slog.Logger
	// Metrics is the registry of the metrics; nil registers none.
	Metrics prometheus.Registerer

	dial dialFunc // for tests
}

func (o *Options) complete() error {
	if o.HTTP == nil && o.HTTPS == nil && !o.StatusOnly {
		return errors.New("there is neither a listener for HTTP nor one for HTTPS")
	}
	text := func(s *string, value string) {
		if *s == "" {
			*s = value
		}
	}
	text(&o.ClassName, ClassName)
	text(&o.ControllerName, ControllerName)
	for d, value := range map[*time.Duration]time.Duration{&o.HeaderTimeout: 10 * time.Second,
		&o.BodyTimeout: time.Minute, &o.WriteTimeout: time.Minute, &o.IdleTimeout: 75 * time.Second,
		&o.ShutdownGracePeriod: 30 * time.Second} {
		if *d == 0 {
			*d = value
		}
	}
	if o.MaxConnections == 0 {
		o.MaxConnections = 16384
	}
	if o.MaxConnectionsPerClient == 0 {
		o.MaxConnectionsPerClient = 1024
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.dial == nil {
		o.dial = (&net.Dialer{}).DialContext
	}
	return nil
}

// Close closes the listeners. Call it if Run is not called.
func (o *Options) Close() {
	for _, ln := range []net.Listener{o.HTTP, o.HTTPS, o.Health} {
		if ln != nil {
			_ = ln.Close() // a second close is harmless
		}
	}
}

// Run serves Ingresses until ctx ends. It then waits for requests, within the grace period, and returns nil when all
// its goroutines have ended. It returns early if the options are invalid or a listener fails.
func Run(ctx context.Context, config *rest.Config, o Options) error {
	config = rest.CopyConfig(config)
	if config.QPS == 0 && config.RateLimiter == nil {
		config.QPS = -1 // the workers limit the load, and so does the server's flow control
	}
	if config.UserAgent == "" {
		config.UserAgent = "coxswain-ingress"
	}
	connections, err := rest.HTTPClientFor(config)
	if err != nil {
		return fmt.Errorf("ingress: create client: %w", err)
	}
	defer utilnet.CloseIdleConnectionsFor(connections.Transport)
	client, err := kubernetes.NewForConfigAndClient(config, connections)
	if err != nil {
		return fmt.Errorf("ingress: create client: %w", err)
	}
	if err := run(ctx, client, o); err != nil {
		return fmt.Errorf("ingress: %w", err)
	}
	return nil
}

func run(ctx context.Context, client kubernetes.Interface, o Options) error {
	defer o.Close()
	if err := o.complete(); err != nil {
		return err
	}
	var connections *limits
	m := newMetrics(func() int { return connections.count() })
	connections = newLimits(o, m.refused.Inc)
	if o.Metrics != nil {
		if err := m.register(o.Metrics); err != nil {
			return err
		}
		defer m.unregister(o.Metrics)
	}
	own, err := selfSigned(o.Clock.Now())
	if err != nil {
		return fmt.Errorf("create default certificate: %w", err)
	}
	rt := newTransport(o.Clock, o.dial, m.retries.Inc)
	defer rt.close()
	p := newProxy(o, rt, m, newAccessLog(o.AccessLog, o.Clock))

	// Informers and status writes continue until the last request has ended.
	following, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	c := newController(following, client, o, p, m)
	s := newServers(o, p, connections, func(name string) *certificatePair { return c.certificateFor(name, own) })
	failed := s.start(health)
	wait, err := c.start(following)
	if err != nil {
		s.close()
		return err
	}
	var working sync.WaitGroup
	if c.fill(ctx) {
		working.Go(func() { c.work(following) })
		s.start(traffic) // until here, connections wait in the listeners' queues
		s.ready.Store(true)
		if o.Ready != nil {
			o.Ready()
		}
		select {
		case <-ctx.Done():
		case err = <-failed:
		}
	}
	s.shutdown(o)
	if o.ClearStatus {
		c.clearStatus(following)
	}
	stop()
	working.Wait()
	wait()
	return err
}
