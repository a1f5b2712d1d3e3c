package controllers

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"slices"
	"time"

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

// Settings are those of single controllers.
type Settings = controller.Settings

// Options select the controllers to run, and how they run. The zero value runs all of them, without
// leader election.
type Options struct {
	// Controllers has the syntax of --controllers: "*" for all, "foo" for the controller
	// foo, "-foo" for all but that one. Empty means "*".
	Controllers []string
	// LeaderElect makes Run act only while it holds the lease.
	LeaderElect    bool
	LeaderElection LeaderElection
	// As, if not nil, is the client configuration by which a controller acts as a ServiceAccount of
	// kube-system (see Accounts), so that it has no rights but its own. Run's config then serves for what
	// they share: informers, events and the lease. Otherwise it serves for everything.
	As func(account string) (*rest.Config, error)
	// Identity names this process in the lease. It must be unique; default: host name and a
	// random part.
	Identity string
	// Workers overrides how many keys a controller, by its name, works on at once.
	Workers map[string]int
	// Settings are those of single controllers.
	Settings Settings
	// Clock is the controllers' only source of time; default: the real one. The lease is
	// always counted in real time.
	Clock clock.WithTicker
	// Log defaults to slog.Default.
	Log *slog.Logger
	// Debug, if not nil, serves the controllers' debug pages.
	Debug *Debug
	// Quiescence, if not nil, gets what the controllers have to do.
	Quiescence *quiescence.Group
	// Ready, if not nil, is called once every controller's caches are filled and its
	// workers run.
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

// Run runs the controllers against the API server that config names, until ctx ends or the
// leadership is lost; the error is ErrLeadershipLost then, and nil after ctx has ended. When
// it returns, no request is under way, no goroutine of it is left, and the lease is free.
//
// Requests are not rate-limited by the client unless config.QPS is set.
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
	// A leader reports that it no longer leads when ctx has ended.
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
		RootCA: rootCA(clients.config, o.Settings), QueueMetrics: queues, Settings: o.Settings,
		Workers: func(name string) int { return o.workers(name) },
	}
	asked := ctx // to run
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
			return failure(asked, ctx)
		}
	}
	o.Log.Info("controllers run", "count", len(enabled))
	if o.Ready != nil {
		o.Ready()
	}
	<-ctx.Done()
	return failure(asked, ctx)
}

// failure is why the controllers have ended, if they were not asked to.
func failure(asked, ctx context.Context) error {
	if asked.Err() != nil {
		return nil
	}
	return context.Cause(ctx)
}

// busy describes work that controllers have left. It looks in the order in which work goes on: from the informers to
// the queues, and from these to the Events.
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

// dropManagedFields keeps field ownership, which no controller reads, out of the caches.
func dropManagedFields(obj any) (any, error) {
	if o, err := meta.Accessor(obj); err == nil && o.GetManagedFields() != nil {
		o.SetManagedFields(nil)
	}
	return obj, nil
}

// clients share one pool of connections.
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

// lease returns a client whose requests give up in time for another try before the deadline.
func (c *clients) lease(deadline time.Duration) kubernetes.Interface {
	limited := *c.http
	limited.Timeout = deadline / 2
	client, err := kubernetes.NewForConfigAndClient(c.config, &limited)
	if err != nil {
		return c.typed // the same configuration has served before
	}
	return client
}

func (c *clients) close() { utilnet.CloseIdleConnectionsFor(c.http.Transport) }
