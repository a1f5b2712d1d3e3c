// Package apiserver is the REST server: it turns HTTP requests into reads, watches and
// commits of package storage, by the rules that package api registers for each kind.
//
// A request passes, in this order: metrics, panic recovery, limits to its body, authentication, the
// audit log, impersonation, a deadline (filters.go, authn.go, audit.go, impersonate.go); then its route
// (Server.Handler below), which resolves the registration, waits for its seats by API Priority and
// Fairness and authorizes (request.go, flow.go); then its verb, one file each: get.go, list.go,
// watch.go, create.go, update.go, patch.go, delete.go. Writes share one path: they are decoded
// strictly (input.go), pass the stages listed in admit.go, and are encoded once and committed
// (write.go); the committed bytes are the response. Package encoding makes other forms of these bytes (YAML, protobuf,
// a Table, metadata only), which output.go chooses. Package responsewriter sends responses: it decides when a byte may
// be held, encoded and written, and owns everything that a request reserves.
//
// This package is the path of a request; the rules are in the packages below it. Packages query and encoding read
// requests. Packages authn, authz, admission and flowcontrol decide about them, and see the store through package
// cluster. Package strategy prepares and checks objects, and pods does for a pod's binding and eviction. Packages
// fieldmanager, servicealloc and ttl add to the transactions. Answers that are not stored come from discovery, review,
// resourcemetrics, componentstatus and proxy. Package status turns errors into the answers that clients know, and
// metrics counts requests.
//
// Controllers, scheduler and nodes are clients of this server like any other, and must
// never be imported here.
package apiserver

import (
	"context"
	"crypto/tls"
	"errors"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/admission"
	"github.com/coxswain-dev/coxswain/apiserver/aggregation"
	"github.com/coxswain-dev/coxswain/apiserver/audit"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
	"github.com/coxswain-dev/coxswain/apiserver/budget"
	"github.com/coxswain-dev/coxswain/apiserver/cluster"
	"github.com/coxswain-dev/coxswain/apiserver/conn"
	"github.com/coxswain-dev/coxswain/apiserver/controlplane"
	"github.com/coxswain-dev/coxswain/apiserver/crd"
	"github.com/coxswain-dev/coxswain/apiserver/crd/conversion"
	"github.com/coxswain-dev/coxswain/apiserver/discovery"
	"github.com/coxswain-dev/coxswain/apiserver/fieldmanager"
	"github.com/coxswain-dev/coxswain/apiserver/flowcontrol"
	"github.com/coxswain-dev/coxswain/apiserver/flowcontrol/config"
	"github.com/coxswain-dev/coxswain/apiserver/health"
	"github.com/coxswain-dev/coxswain/apiserver/loopback"
	"github.com/coxswain-dev/coxswain/apiserver/metrics"
	"github.com/coxswain-dev/coxswain/apiserver/proxy"
	"github.com/coxswain-dev/coxswain/apiserver/responsewriter"
	"github.com/coxswain-dev/coxswain/apiserver/review"
	"github.com/coxswain-dev/coxswain/apiserver/servicealloc"
	"github.com/coxswain-dev/coxswain/apiserver/ttl"
	"github.com/coxswain-dev/coxswain/apiserver/webhook"
	"github.com/coxswain-dev/coxswain/internal/clock/virtualtime"
	"github.com/coxswain-dev/coxswain/storage"
)

// Options assemble a Server. Store and Registry are required.
type Options struct {
	Store    *storage.Store
	Registry *api.Registry
	// Authentication configures the accepted credentials. Without any, every request that needs an identity is answered
	// 401.
	Authentication authn.Options
	// Authorization selects the authorizers; the default is Node, RBAC.
	Authorization authz.Options
	// Admission chooses and configures the admission plugins.
	Admission admission.Options
	// ServiceCIDRs are the ranges of cluster IPs (--service-cluster-ip-range): one range, or one
	// of each IP family, the default family first. NodePorts is --service-node-port-range.
	ServiceCIDRs []netip.Prefix
	NodePorts    utilnet.PortRange
	// AdvertiseAddress is the endpoint of the Service "kubernetes" (--advertise-address); by
	// default the address of the listener, or of this machine if the listener is on loopback.
	AdvertiseAddress netip.Addr
	AdvertiseLater   bool // there is no endpoint before Advertise is called
	// Kubelet configures connections to nodes.
	Kubelet proxy.KubeletOptions
	// ProxyClient is the certificate by which aggregated API servers recognize requests that this server passes on
	// for its users (--proxy-client-cert-file). Without it they cannot trust the user that a request names.
	ProxyClient func() (*tls.Certificate, error)
	// Components are the addresses of the health checks of controller-manager and scheduler (host:port, or
	// componentstatus.InProcess); nil is componentstatus.DefaultAddresses.
	Components map[string]string
	// EventTTL is how long Events are kept (--event-ttl); 0 means one hour.
	EventTTL time.Duration
	// RequestTimeout bounds every request except watches (--request-timeout); 0 means one minute.
	RequestTimeout time.Duration
	// ShutdownDelay is how long a server that has to stop keeps serving, not ready and removed from the Service
	// kubernetes, so that load balancers send new connections elsewhere (--shutdown-delay-duration).
	ShutdownDelay time.Duration
	// SendRetryAfter makes a server that stops answer new requests with 429 and Retry-After until the requests under
	// way are done (--shutdown-send-retry-after). Without it, new connections are refused.
	SendRetryAfter bool
	// GoawayChance is the share of requests over HTTP/2, 0 to MaxGoawayChance, after which the server sends GOAWAY and
	// the client opens another connection (--goaway-chance). Behind a load balancer this spreads connections over
	// servers.
	GoawayChance float64
	// Limits bound the resources of one client, and of all clients together.
	Limits Limits
	// Audit records requests; nil for none. The caller closes it when Serve has returned.
	Audit *audit.Auditor
	// Debug maps paths to the handlers of components in the same process. They answer GET at their path or, if it ends
	// with a slash, below it. The requests are authorized like all others.
	Debug map[string]http.Handler
	// Metrics are the metrics of components in the same process. They are served at /metrics beside the server's own.
	Metrics []prometheus.Gatherer
	// Flags are the command line's flags and their values, for /flagz.
	Flags map[string]string
	// NoProfiling leaves out /debug/pprof (--profiling=false).
	NoProfiling bool
	// ReadyChecks are further parts of /readyz.
	ReadyChecks []ReadyCheck
	// Middleware, if not nil, wraps the handler of every authenticated request, so that a test may observe, delay and
	// replace answers. If it wraps the ResponseWriter, the wrapper has the method Unwrap of http.ResponseController.
	Middleware func(http.Handler) http.Handler
	// Clock is the time of objects, credentials and Events; deadlines and pauses follow the machine's clock. Nil is the
	// real clock. A *virtualtime.Clock can be moved at /debug/clock.
	Clock clock.WithTicker
	Log   *slog.Logger
}

// Server serves the Kubernetes API. Its methods are safe for concurrent use.
type Server struct {
	Options
	start        time.Time
	metrics      *metrics.Requests
	health       *health.Reporter
	registry     *prometheus.Registry
	authn        *authn.Authentication
	admission    *admission.Chain
	cluster      *cluster.Cluster
	authorizers  *authz.Authorizers
	authorizer   *authz.Confirmed
	escalation   authz.EscalationCheck
	reviewer     review.Reviewer
	discovery    *discovery.Handlers
	controlPlane *controlplane.ControlPlane
	services     *servicealloc.Allocator
	proxy        *proxy.Proxy
	dialer       *proxy.Dialer // for nodes, pods and services
	loopback     loopbackClient
	lifetimes    *ttl.Lifetimes
	definitions  *crd.Controller // nil if there are none
	webhooks     *webhook.Client
	conversions  *conversion.Webhooks
	aggregation  *aggregation.Aggregation // nil if there is none
	computers    map[schema.GroupVersionKind]computer
	// appliers are the field managers of server-side apply.
	appliers fieldmanager.Appliers
	// flow serves, queues or rejects requests. It is nil if inflight limits them instead.
	flow     *config.Follower
	inflight *flowcontrol.InFlight
	// limiter bounds the memory of all requests together.
	limiter *responsewriter.Limiter
	// leaving is set once the server has to stop: it is no longer ready.
	leaving atomic.Bool
	refusal refusal
	// drain is done when the server stops accepting connections: watches and streams end.
	drain      context.Context
	beginDrain context.CancelFunc
}

// Defaults of Options, which are those of kube-apiserver's flags.
const (
	DefaultEventTTL       = time.Hour
	DefaultRequestTimeout = time.Minute
)

// New checks the options and writes the objects that every cluster needs (the system namespaces), so that the Server is
// ready to serve. The order matters: parts that read the cluster come after the cluster, and flow control and the
// authorizer, which read stored objects, come last.
func New(ctx context.Context, o Options) (*Server, error) {
	if o.Store == nil || o.Registry == nil {
		return nil, errors.New("apiserver: Store and Registry are required")
	}
	if o.EventTTL == 0 {
		o.EventTTL = DefaultEventTTL
	}
	if o.RequestTimeout == 0 {
		o.RequestTimeout = DefaultRequestTimeout
	}
	o.Limits = o.Limits.withDefaults()
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	s := &Server{
		Options: o,
		limiter: responsewriter.NewLimiter(responsewriter.Options{RequestMemory: o.Limits.RequestMemory,
			MemoryWait: o.RequestTimeout / 4, StreamMemory: o.Limits.StreamMemory,
			WatchesPerUser: o.Limits.WatchesPerUser}),
	}
	s.loopback = loopbackClient{loopback.New(loopback.Options{Store: o.Store, Registry: o.Registry, Clock: o.Clock,
		Audit: o.Audit, UserAgent: "kube-apiserver/" + Version}), s}
	var err error
	s.services, err = servicealloc.New(servicealloc.Options{Store: o.Store, Objects: s.loopback,
		Kinds: o.Registry.Snapshot(), CIDRs: o.ServiceCIDRs, NodePorts: o.NodePorts, Log: o.Log})
	if err != nil {
		return nil, err
	}
	s.authorizer = &authz.Confirmed{Memory: o.Store} // newAuthorizer sets its Rights, which read the cluster
	s.cluster = cluster.New(cluster.Options{Store: o.Store, Registry: o.Registry, Objects: s.loopback,
		Authorizer: s.authorizer, Appliers: &s.appliers, Log: o.Log})
	s.drain, s.beginDrain = context.WithCancel(context.Background())
	s.dialer = proxy.NewDialer(o.Kubelet.Dial)
	kubelet := o.Kubelet
	kubelet.Dial = s.dialer.Dial
	s.proxy = proxy.New(s.drain, kubelet, s.loopback, s.debugLog())
	s.controlPlane, err = controlplane.New(controlplane.Options{Store: o.Store, Registry: o.Registry,
		Objects:  s.loopback,
		Services: s.services, ServiceCIDRs: s.services.CIDRs, AdvertiseAddress: o.AdvertiseAddress,
		AdvertiseLater: o.AdvertiseLater,
		ClientCAs:      o.Authentication.ClientCAs, RequestHeader: o.Authentication.RequestHeader,
		TrackTokens: o.Authentication.ServiceAccounts != nil, Clock: o.Clock, Log: o.Log})
	if err != nil {
		return nil, err
	}
	o.Authentication.KubeletClient = o.Kubelet.Certificate
	if s.authn, err = authn.New(o.Authentication, cluster.Credentials{Cluster: s.cluster}, o.Clock,
		o.Log); err != nil {
		return nil, err
	}
	s.webhooks = webhook.New(webhook.Options{Objects: s.loopback, Dial: o.Kubelet.Dial})
	o.Admission.Webhooks, o.Admission.Clock = s.webhooks, o.Clock
	if issuer := o.Authentication.ServiceAccounts; issuer != nil {
		o.Admission.TokenAudiences = issuer.Audiences
	}
	if s.admission, err = admission.NewChain(s.cluster, o.Admission); err != nil {
		return nil, err
	}
	s.lifetimes = ttl.New(ttl.Options{Store: o.Store, Registry: o.Registry, Objects: s.loopback,
		Servers: controlplane.Presences, EventTTL: o.EventTTL, DeleteTimeout: o.RequestTimeout, Clock: o.Clock,
		Log: o.Log})
	s.conversions = conversion.New(s.webhooks)
	s.metrics, s.health, s.start = metrics.New(), health.NewReporter(o.Log), time.Now()
	s.registry = s.newRegistry()
	if o.Audit != nil {
		s.registry.MustRegister(o.Audit)
	}
	s.registry.MustRegister(s.authn.Metrics()...)
	s.registry.MustRegister(s.webhooks.Metrics())
	if s.computers, err = s.newComputers(); err != nil {
		return nil, err
	}
	if err := s.checkReviewers(); err != nil {
		return nil, err
	}
	if s.definitions, err = crd.New(ctx, crd.Options{Store: o.Store, Registry: o.Registry,
		Objects: s.loopback, Converter: s.conversions, Clock: o.Clock, Log: o.Log,
		Forget: s.forgetKinds}); err != nil {
		return nil, err
	}
	if err := s.newAggregation(ctx); err != nil {
		return nil, err
	}
	s.discovery = discovery.New(discovery.Options{Registry: o.Registry, Version: Version, Aggregation: s.aggregation,
		Settle: s.settleKinds, WriteBody: s.writeBody, Pass: s.passDocument})
	if err := s.controlPlane.Bootstrap(ctx); err != nil {
		return nil, err
	}
	if err := s.newFlow(ctx); err != nil {
		return nil, err
	}
	if err := s.newAuthorizer(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// PolicyWritten returns a channel that is closed when the roles and bindings of every cluster are stored. They are in
// force before that: Serve writes them while it serves.
func (s *Server) PolicyWritten() <-chan struct{} { return s.controlPlane.PolicyWritten() }

// Handler returns the route table. Resource routes are patterns that are resolved by the registry, so that kinds may
// come and go while the server runs.
func (s *Server) Handler() http.Handler {
	r := chi.NewRouter()
	r.Use(s.observe, s.recoverPanics, plainPath, s.limitBody)
	if s.SendRetryAfter {
		r.Use(s.refuseWhileLeaving)
	}
	r.Use(s.authenticate)
	if s.Audit != nil {
		r.Use(s.audited)
	}
	r.Use(s.impersonate)
	if s.Middleware != nil {
		r.Use(s.Middleware)
	}
	if s.GoawayChance > 0 {
		r.Use(s.goaway)
	}
	if s.flow == nil {
		r.Use(s.limitInflight)
	} else {
		r.Use(s.returnSeats)
	}
	r.Use(s.deadline, s.aggregate)
	r.NotFound(s.path(s.serveNotFound))
	r.MethodNotAllowed(s.path(s.serveMethodNotAllowed))

	r.Get("/", s.path(s.servePaths))
	r.Get("/livez", s.path(s.serveLivez))
	r.Get("/livez/{check}", s.path(s.serveLivez))
	r.Get("/readyz", s.path(s.serveReadyz))
	r.Get("/readyz/{check}", s.path(s.serveReadyz))
	r.Get("/healthz", s.path(s.serveReadyz))
	r.Get("/healthz/{check}", s.path(s.serveReadyz))
	for path, serve := range map[string]func(http.ResponseWriter, *http.Request) error{
		"/livez": s.serveLivez, "/readyz": s.serveReadyz, "/healthz": s.serveReadyz,
	} {
		r.Head(path, s.path(serve)) // for load balancers
	}
	r.Get("/version", s.path(s.serveVersion))
	r.Get("/version/", s.path(s.serveVersion))
	r.Get("/metrics", s.path(s.serveMetrics))
	r.Get("/metrics/slis", s.path(s.serveSLIs))
	r.Get("/statusz", s.path(s.serveStatusz))
	r.Get("/flagz", s.path(s.serveFlagz))
	if !s.NoProfiling {
		r.Get("/debug/pprof/*", s.path(s.serveProfile))
		r.Post("/debug/pprof/*", s.path(s.serveProfile))
	}
	if s.flow != nil {
		r.Get("/debug/api_priority_and_fairness/{dump}", s.path(s.serveFlowDump))
	}
	r.Get("/debug/admission_webhooks", s.path(s.serveWebhookCalls))
	if c, ok := s.Clock.(*virtualtime.Clock); ok {
		s.clockRoutes(r, c)
	}
	for path, h := range s.Debug {
		if strings.HasSuffix(path, "/") {
			path += "*"
		}
		r.Get(path, s.path(func(w http.ResponseWriter, r *http.Request) error { h.ServeHTTP(w, r); return nil }))
	}
	if o := s.Authentication.ServiceAccounts; o != nil {
		r.Get("/.well-known/openid-configuration", s.path(s.serveIssuer))
		r.Get("/openid/v1/jwks", s.path(s.serveIssuerKeys))
	}
	r.Get("/openapi/v2", s.path(s.discovery.OpenAPIV2))
	r.Get("/openapi/v3", s.path(s.discovery.OpenAPIV3Index))
	r.Get("/openapi/v3/*", s.path(s.discovery.OpenAPIV3))
	r.Get("/api", s.path(s.discovery.Versions))
	r.Get("/apis", s.path(s.discovery.Groups))
	r.Get("/apis/{group}", s.path(s.discovery.Group))
	r.Route("/api/{version}", s.resources)
	r.Route("/apis/{group}/{version}", s.resources)
	return r
}

// resources adds the routes below one group and version. A route names the verb, and Server.answer calls its function.
func (s *Server) resources(r chi.Router) {
	r.Get("/", s.path(s.discovery.Resources))
	for _, collection := range []string{"/{resource}", "/namespaces/{namespace}/{resource}"} {
		r.Get(collection, s.resource("list"))
		r.Post(collection, s.resource("create"))
		r.Put(collection, s.resource("update"))
		r.Patch(collection, s.resource("patch"))
		r.Delete(collection, s.resource("deletecollection"))
		for _, object := range []string{"/{name}", "/{name}/{subresource}"} {
			r.Get(collection+object, s.resource("get"))
			r.Post(collection+object, s.resource("create"))
			r.Put(collection+object, s.resource("update"))
			r.Patch(collection+object, s.resource("patch"))
			r.Delete(collection+object, s.resource("delete"))
		}
		for _, object := range []string{"/{name}/proxy", "/{name}/proxy/*"} {
			for method, verb := range proxyVerbs {
				r.MethodFunc(method, collection+object, s.proxied(verb))
			}
		}
		// Deprecated since 1.11, but kube-apiserver still serves them.
		r.Get("/watch"+collection, s.resource("watch"))
		r.Get("/watch"+collection+"/{name}", s.resource("watch"))
	}
}

// debugLog returns a logger for net/http's own messages.
func (s *Server) debugLog() *log.Logger { return slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug) }

// Serve serves on the listener until ctx ends, and then shuts down (shutdown.go). It returns nil after an orderly
// shutdown, when all goroutines that it started have ended, except for connections that were cut off.
func (s *Server) Serve(ctx context.Context, ln net.Listener, tc *tls.Config) error {
	handler := conn.NewReleasable(s.Handler())
	defer handler.Release()
	srv := &http.Server{
		Handler:           handler,
		TLSConfig:         tc,
		ConnContext:       connContext,
		ConnState:         conn.NoteState,
		ReadHeaderTimeout: headerTimeout,
		// How long a client that does not read may delay a response. A long-running request lifts the limit
		// (Server.deadline).
		WriteTimeout:   s.RequestTimeout + headerTimeout,
		IdleTimeout:    3 * time.Minute,
		MaxHeaderBytes: maxHeader,
		ErrorLog:       s.debugLog(),
		// Bodies of requests that wait are held in memory before they are read.
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: s.Limits.StreamsPerConnection,
			MaxReceiveBufferPerConnection: 128 << 10, MaxReceiveBufferPerStream: 64 << 10},
		// net/http would answer "OPTIONS *" without authentication.
		DisableGeneralOptionsHandler: true,
	}
	if own, ok := ln.Addr().(*net.TCPAddr); ok {
		s.dialer.Exclude(own)
	}
	srv.RegisterOnShutdown(s.beginDrain)
	defer s.proxy.Close()
	defer s.webhooks.Close()
	address := s.controlPlane.Join(ctx, ln.Addr())
	var present sync.WaitGroup
	present.Go(func() { s.controlPlane.Run(ctx) })
	stopWork := s.work(ctx, address)
	defer stopWork()
	served := make(chan error, 1)
	open, over := context.WithCancel(context.WithoutCancel(ctx))
	defer over()
	clients := conn.NewListener(conn.LimitByMemory(conn.LimitPerClient(ln, s.Limits.ConnectionsPerClient, s.Log),
		s.limiter.Memory.Size, responsewriter.ConnectionMemory, s.Log))
	go clients.EndStuck(open, max(s.RequestTimeout/2, time.Second))
	go func() { served <- srv.ServeTLS(clients, "", "") }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	present.Wait() // so that leave is the last write of this server's endpoint
	err := s.leave(context.WithoutCancel(ctx), served)
	if err == nil {
		stopWork()
		if s.SendRetryAfter {
			s.refuseAll()
		}
		err = conn.Shutdown(srv, clients, shutdownGrace)
		<-served
	}
	return err
}

// Advertise changes the address that the Service "kubernetes" points to, while the server serves.
func (s *Server) Advertise(ctx context.Context, ip netip.Addr) { s.controlPlane.Advertise(ctx, ip) }

// work starts the background work of serving. It goes on after ctx has ended, until stop is called, which waits for its
// goroutines. stop may be called twice.
func (s *Server) work(ctx context.Context, address netip.AddrPort) (stop func()) {
	background, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	run := func(part func(context.Context)) { running.Go(func() { part(background) }) }
	run(s.services.Run)
	run(func(ctx context.Context) { s.lifetimes.Run(ctx, address.String()) })
	if s.definitions != nil {
		run(s.definitions.Run)
	}
	if s.aggregation != nil {
		run(s.aggregation.Run)
	}
	run(s.authn.Run)
	run(s.authorizers.Run)
	if s.Limits.RequestMemory == 0 && s.limiter.Memory.Limited() {
		run(func(ctx context.Context) { s.limiter.Memory.Follow(ctx, budget.ProcessLimit()) })
	}
	if s.flow != nil {
		run(s.flow.Run)
		run(s.controlPlane.KeepFlowControl)
	}
	return func() { cancel(); running.Wait() }
}

// connContext adds the connection to the context of its requests, for authentication and streams.
func connContext(ctx context.Context, c net.Conn) context.Context {
	return conn.WithConn(authn.WithConnection(ctx, c), c)
}
