// Package ingress serves Ingresses: it accepts HTTP and HTTPS from outside and sends the requests to pods.
//
// What comes in: Ingresses, IngressClasses, Services, EndpointSlices and the Secrets that Ingresses name, from a
// server; connections, from clients. What goes out: requests to endpoints, the status of Ingresses, Events on those
// that cannot be served as they are. Two halves meet in one pointer, the routing table, which does not change once it
// is built:
//
//	controller.go   takes up changes, in one goroutine, and puts a new table in place
//	class.go        which Ingresses are served
//	book.go         the claims of all Ingresses, and whose they are; makes tables
//	site.go         the tables: from a host and a path to a route
//	annotations.go  what annotations say about requests
//	upstream.go     a Service's port and its endpoints; the choice between them
//	secrets.go      certificates, each watched by its Secret's name
//	status.go       the addresses in the status of Ingresses
//
//	serve.go        the servers, from their start to their end
//	listen.go       limits on connections and stalled clients
//	proxy.go        one request
//	forward.go      the headers by which endpoints learn of the client
//	transport.go    connections to endpoints, and second tries
//	accesslog.go, metrics.go
//
// It reaches the server as any client does, and must not import api, storage, apiserver, node or controllers.
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

// Options configure an ingress controller. The zero value serves nothing, for want of a listener.
type Options struct {
	// HTTP and HTTPS accept clients; nil for none. Run closes them.
	HTTP, HTTPS net.Listener
	// Health, if not nil, accepts probes: /healthz returns 200 while requests are served, and 503 before and from the
	// beginning of the shutdown. Run closes it.
	Health net.Listener
	// HideHTTPSPort has redirects lead to the port 443, whichever HTTPS has: something before this process maps it.
	HideHTTPSPort bool

	// ClassName is the name by which Ingresses ask for this controller; "coxswain" where empty.
	ClassName string
	// ControllerName is the spec.controller of this controller's IngressClasses; "coxswain.dev/ingress" where empty.
	ControllerName string
	// CreateClass makes the IngressClass ClassName if there is none.
	CreateClass bool
	// WatchNamespace is the only namespace whose Ingresses are served; all where empty.
	WatchNamespace string
	// HostPerNamespace gives a host to the namespace of its oldest Ingress. Otherwise Ingresses of several namespaces
	// may share a host, as far as their paths differ.
	HostPerNamespace bool

	// PublishAddresses are written to the status of Ingresses: IP addresses or host names.
	PublishAddresses []string
	// PublishService is a Service whose addresses are written to the status of Ingresses, if its name is not empty.
	PublishService types.NamespacedName
	// ClearStatus removes the addresses from the status when Run ends. Only the last of several processes may.
	ClearStatus bool

	// DefaultCertificate is a Secret whose certificate is for hosts without one; where its name is empty, a
	// self-signed one is made at the start.
	DefaultCertificate types.NamespacedName
	// TrustedProxies are the clients whose X-Forwarded-For, -Host, -Proto and -Port are believed.
	TrustedProxies []netip.Prefix

	// MaxConnections and MaxConnectionsPerClient bound open connections, in all and of one IPv4 address or IPv6 /64;
	// 16384 and 1024 where zero. Connections beyond that are closed at once.
	MaxConnections, MaxConnectionsPerClient int
	// HeaderTimeout bounds the time for a request's header; BodyTimeout and WriteTimeout that of each read of its body
	// and each write of its response; IdleTimeout that between requests. 10 s, 60 s, 60 s and 75 s where zero.
	HeaderTimeout, BodyTimeout, WriteTimeout, IdleTimeout time.Duration
	// ShutdownDelay is how long requests are served after /healthz has turned 503, so that load balancers notice.
	ShutdownDelay time.Duration
	// ShutdownGracePeriod is how long requests may take after that; 30 s where zero.
	ShutdownGracePeriod time.Duration

	// AccessLog, if not nil, gets a line of JSON for each request. It is not written to concurrently.
	AccessLog io.Writer
	// Ready, if not nil, is called once requests are served by all that the server has.
	Ready func()
	// Clock is the time of retries and log lines; the real one where nil. Deadlines of sockets are the kernel's.
	Clock clock.WithTickerAndDelayedExecution
	// Log receives the log lines; slog.Default where nil.
	Log *slog.Logger
	// Metrics is where the metrics are registered; nowhere if nil.
	Metrics prometheus.Registerer

	dial dialFunc // of tests
}

func (o *Options) complete() error {
	if o.HTTP == nil && o.HTTPS == nil {
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

// Close closes the listeners, where Run is not called after all.
func (o *Options) Close() {
	for _, ln := range []net.Listener{o.HTTP, o.HTTPS, o.Health} {
		if ln != nil {
			_ = ln.Close() // again, where it was served
		}
	}
}

// Run serves Ingresses until ctx ends. It then lets requests end, within the grace period, and returns nil when all
// its goroutines have. It returns early if the options are wrong or a listener fails.
func Run(ctx context.Context, config *rest.Config, o Options) error {
	config = rest.CopyConfig(config)
	if config.QPS == 0 && config.RateLimiter == nil {
		config.QPS = -1 // the workers bound the load, and flow control is the server's
	}
	if config.UserAgent == "" {
		config.UserAgent = "coxswain-ingress"
	}
	connections, err := rest.HTTPClientFor(config)
	if err != nil {
		return fmt.Errorf("ingress: client: %w", err)
	}
	defer utilnet.CloseIdleConnectionsFor(connections.Transport)
	client, err := kubernetes.NewForConfigAndClient(config, connections)
	if err != nil {
		return fmt.Errorf("ingress: client: %w", err)
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
		return fmt.Errorf("default certificate: %w", err)
	}
	rt := newTransport(o.Clock, o.dial, m.retries.Inc)
	defer rt.close()
	p := newProxy(o, rt, m, newAccessLog(o.AccessLog, o.Clock))

	// Informers and status writes go on until the last request has ended.
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
