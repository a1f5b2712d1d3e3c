package controllers

import (
	"cmp"
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
	"github.com/coxswain-dev/coxswain/internal/client/events"
	"github.com/coxswain-dev/coxswain/internal/client/informer"
	"github.com/coxswain-dev/coxswain/internal/clock/quiescence"
)

// Settings are the settings of single controllers.
type Settings = controller.Settings

// Options select the controllers to run, and how they run. The zero value runs all of them, without
// leader election.
type Options struct {
	// Controllers has the syntax of --controllers: "*" for all, "foo" for the controller
	// foo, "-foo" to exclude it. Empty means "*".
	Controllers []string
	// LeaderElect makes Run act only while it holds the lease.
	LeaderElect    bool
	LeaderElection LeaderElection
	// As, if set, returns the client configuration of a ServiceAccount in kube-system (see Accounts), so that
	// each controller has only its own rights. Run's config then serves the shared requests: informers, Events
	// and the lease. Otherwise it serves all requests.
	As func(account string) (*rest.Config, error)
	// Identity names this process in the lease. It must be unique; default: host name and a random suffix.
	Identity string
	// Workers overrides how many keys a controller reconciles concurrently, by the controller's name.
	Workers map[string]int
	// Settings are the settings of single controllers.
	Settings Settings
	// Clock is the controllers' only source of time; default: the real clock. The lease always counts real
	// time.
	Clock clock.WithTicker
	// Log defaults to slog.Default.
	Log *slog.Logger
	// Metrics, if set, gets the controllers' metrics while they run. Metrics() is one for the whole process.
	Metrics prometheus.Registerer
	// Debug, if set, serves the controllers' debug pages.
	Debug *Debug
	// Quiescence, if set, gets a probe of the controllers' remaining work.
	Quiescence *quiescence.Group
	// Ready, if set, is called once the caches of all controllers are filled and their workers run.
	Ready func()
}

func (o Options) withDefaults() Options {
	if len(o.Controllers) == 0 {
		o.Controllers = []string{"*"}
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Identity == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "coxswain"
		}
		o.Identity = host + "_" + string(uuid.NewUUID())
	}
	o.LeaderElection = o.LeaderElection.withDefaults()
	o.Settings = o.Settings.WithDefaults()
	return o
}

// Run runs the controllers against the API server of config, until ctx ends or the leadership is lost. It
// returns nil after ctx has ended, and ErrLeadershipLost otherwise. When it returns, no request is in flight,
// none of its goroutines is left, and the lease is released.
func Run(ctx context.Context, config *rest.Config, o Options) error {
	o = o.withDefaults()
	if u, err := url.Parse(config.Host); err == nil && u.Hostname() != "" {
		names := &o.Settings.Signing.APIServerNames
		*names = append(slices.Clone(*names), u.Hostname())
	}
	enabled, err := selectControllers(o.Controllers)
	if err != nil {
		return err
	}
	clients, err := connect(config)
	if err != nil {
		return err
	}
	defer clients.close()
	recorder := events.NewRecorder(func(string) kubernetes.Interface { return clients.typed }, o.Clock, o.Log)
	// The recorder outlives ctx: a leader records an Event when it stops leading.
	recording, stopRecording := context.WithCancel(context.WithoutCancel(ctx))
	recorder.Start(recording)
	defer recorder.Wait()
	defer stopRecording()

	act := func(ctx context.Context) error { return runControllers(ctx, enabled, clients, recorder, o) }
	if !o.LeaderElect {
		return act(ctx)
	}
	return lead(ctx, clients.lease(o.LeaderElection.RenewDeadline), recorder.As("kube-controller-manager"), o, act)
}

// runControllers builds the controllers, fills their caches, and runs them until ctx ends.
// Everything stops in the reverse order of its start.
func runControllers(ctx context.Context, enabled []entry, clients *clients, recorder *events.Recorder,
	o Options) error {
	env := &controller.Env{
		Reader:    clients.typed,
		Informers: informer.NewFactory(clients.typed, informer.Options{Transform: dropManagedFields, Log: o.Log}),
		Recorder:  recorder.As, Clock: o.Clock, Log: o.Log,
		RootCA: rootCA(clients.config, o.Settings), ServerCertificate: clients.serverCertificate,
		QueueMetrics: queues, Metrics: runningMetrics(enabled), Settings: o.Settings,
		Workers: func(name string) int { return o.workers(name) },
	}
	parent := ctx // ends only if the caller stops the controllers
	ctx, cancel := context.WithCancelCause(ctx)
	defer env.Informers.Shutdown()
	defer cancel(nil)

	var disconnect []func()
	defer func() {
		for _, close := range disconnect {
			close()
		}
	}()
	var all []*controller.Controller
	defer func() {
		for _, c := range all {
			c.Wait()
		}
	}()
	for _, e := range enabled {
		own := clients.as(e, o.As, cancel)
		disconnect = append(disconnect, own.close)
		env := *env
		env.Client, env.Metadata = own.typed, own.metadata
		c, err := e.construct(&env)
		if err != nil {
			cancel(nil)
			return fmt.Errorf("%s: %w", e.name, err)
		}
		if c.Debug != nil {
			o.Debug.set(e.alias, c.Debug)
			defer o.Debug.set(e.alias, nil)
		}
		all = append(all, c)
	}
	if o.Metrics != nil {
		if err := o.Metrics.Register(env.Metrics); err != nil {
			cancel(nil)
			return fmt.Errorf("register metrics: %w", err)
		}
		defer o.Metrics.Unregister(env.Metrics)
	}
	env.Informers.StartWithContext(ctx)
	for _, c := range all {
		c.Start(ctx)
	}
	defer o.Quiescence.Add(func(revision int64) string {
		return busy(revision, env.Informers, recorder, all)
	})()
	for _, c := range all {
		select {
		case <-c.Started():
		case <-ctx.Done():
			return failure(parent, ctx)
		}
	}
	o.Log.Info("controllers started", "count", len(enabled))
	if o.Ready != nil {
		o.Ready()
	}
	<-ctx.Done()
	return failure(parent, ctx)
}

// failure returns the reason why the controllers ended, nil if the caller stopped them.
func failure(parent, ctx context.Context) error {
	if parent.Err() != nil {
		return nil
	}
	return context.Cause(ctx)
}

// busy describes the controllers' remaining work. It follows the direction in which work flows, from the
// informers to the queues to the Events, so that work which moves on meanwhile is not missed.
func busy(revision int64, shared *informer.Factory, recorder *events.Recorder, all []*controller.Controller) string {
	work := shared.Busy(revision)
	for _, c := range all {
		if work != "" {
			break
		}
		if work = c.Busy(revision); work != "" {
			work = c.Name + ": " + work
		}
	}
	if work = cmp.Or(work, recorder.Busy()); work != "" {
		work = "controllers: " + work
	}
	return work
}

func rootCA(config *rest.Config, s Settings) []byte {
	if len(s.RootCA) > 0 {
		return s.RootCA
	}
	return config.CAData
}

func (o Options) workers(name string) int {
	for _, e := range table {
		if !e.is(name) {
			continue
		}
		for _, key := range []string{e.name, e.alias} {
			if n, ok := o.Workers[key]; ok {
				return n
			}
		}
		return e.workers
	}
	return 1
}

// dropManagedFields removes managedFields, which no controller reads, before objects are cached.
func dropManagedFields(obj any) (any, error) {
	if o, err := meta.Accessor(obj); err == nil && o.GetManagedFields() != nil {
		o.SetManagedFields(nil)
	}
	return obj, nil
}

// clients are the typed and the metadata client of one identity. They share a pool of connections.
type clients struct {
	config   *rest.Config
	http     *http.Client
	typed    kubernetes.Interface
	metadata metadata.Interface
}

func connect(config *rest.Config) (*clients, error) {
	config = rest.CopyConfig(config)
	if config.QPS == 0 {
		config.QPS = -1
	}
	if config.UserAgent == "" {
		config.UserAgent = "coxswain-controllers"
	}
	if err := rest.LoadTLSFiles(config); err != nil {
		return nil, err
	}
	connections, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	return clientsOf(config, connections)
}

func clientsOf(config *rest.Config, connections *http.Client) (*clients, error) {
	c := &clients{config: config, http: connections}
	var err error
	if c.typed, err = kubernetes.NewForConfigAndClient(config, c.http); err != nil {
		return nil, err
	}
	objects, err := metadata.NewForConfigAndClient(metadata.ConfigFor(config), c.http)
	if err != nil {
		return nil, err
	}
	c.metadata = controller.OneSegment(objects)
	return c, nil
}

// lease returns a client whose requests time out early enough for another try before the deadline.
func (c *clients) lease(deadline time.Duration) kubernetes.Interface {
	limited := *c.http
	limited.Timeout = deadline / 2
	client, err := kubernetes.NewForConfigAndClient(c.config, &limited)
	if err != nil {
		return c.typed // cannot happen: the same configuration was valid before
	}
	return client
}

// serverCertificate returns the certificate that the API server presents now; nil over a connection without TLS.
func (c *clients) serverCertificate(ctx context.Context) (*x509.Certificate, error) {
	url := c.typed.Discovery().RESTClient().Get().AbsPath("/version").URL()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url.String(), nil)
	if err != nil {
		return nil, err
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, fmt.Errorf("certificate of the API server: %w", err)
	}
	_ = response.Body.Close()
	if response.TLS == nil {
		return nil, nil
	}
	return response.TLS.PeerCertificates[0], nil
}

func (c *clients) close() { utilnet.CloseIdleConnectionsFor(c.http.Transport) }
