// Package testenv gives a Go test a control plane of its own: the API server on an etcd in
// memory, controllers, the scheduler and simulated nodes, all in the test's process and
// gone with the test.
//
//	func TestOperator(t *testing.T) {
//		config := testenv.Start(t)
//		client := kubernetes.NewForConfigOrDie(config)
//		...
//	}
//
// Deployments come up, namespaces are really deleted, garbage is collected. Any number of
// control planes may run at once, in parallel tests too; nothing is downloaded, and no
// port is fixed.
package testenv

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/apiserver/admission"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
	"github.com/coxswain-dev/coxswain/apiserver/componentstatus"
	"github.com/coxswain-dev/coxswain/apiserver/pki"
	"github.com/coxswain-dev/coxswain/apiserver/proxy"
	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/node"
	"github.com/coxswain-dev/coxswain/scheduler"
	"github.com/coxswain-dev/coxswain/storage"
)

// Option changes what Start starts.
type Option func(*options)

type options struct {
	controllers    []string
	scheduler      bool
	nodes          int
	log            *slog.Logger
	admission      admission.Options
	components     map[string]string
	authentication authn.Options
	external       string // a kubeconfig; "" for a server of the test's own
	debug          *controllers.Debug
	clock          clock.PassiveClock
	crds           []string // files and folders
}

// WithNodes sets how many simulated Nodes there are; the default is 1.
func WithNodes(n int) Option { return func(o *options) { o.nodes = n } }

// WithControllers chooses controllers as --controllers does: "*", "deployment", "-namespace".
// Without an argument none runs.
func WithControllers(names ...string) Option { return func(o *options) { o.controllers = names } }

// WithoutScheduler leaves pods unscheduled.
func WithoutScheduler() Option { return func(o *options) { o.scheduler = false } }

// APIServerOnly starts the API server and nothing else.
func APIServerOnly() Option {
	return func(o *options) { o.controllers, o.scheduler, o.nodes = nil, false, 0 }
}

// undone are the admission plugins that only do good beside a controller: pods wait for a
// ServiceAccount that it makes, Nodes for a taint that it takes away.
var undone = map[string]string{
	"ServiceAccount":        "serviceaccount-controller",
	"TaintNodesByCondition": "node-lifecycle-controller",
}

// WithAdmission chooses and configures admission plugins, as --enable-admission-plugins and its
// family do. The default is kube-apiserver's, without those of undone whose controller does not run.
func WithAdmission(a admission.Options) Option { return func(o *options) { o.admission = a } }

// WithComponents is where the API server asks controller-manager and scheduler, by these names, whether they
// are well (host:port); those that the environment has are in the same process, and the default of others is
// where they serve unless told otherwise.
func WithComponents(addresses map[string]string) Option {
	return func(o *options) { o.components = addresses }
}

// WithClock is by what the API server tells the time; the default is the machine's.
func WithClock(c clock.PassiveClock) Option { return func(o *options) { o.clock = c } }

// WithLog sends the control plane's logs to a logger; the default drops them.
func WithLog(l *slog.Logger) Option { return func(o *options) { o.log = l } }

// logged is a context by which client-go logs to the control plane's logger in place of stderr.
func (o *options) logged() context.Context {
	return klog.NewContext(context.Background(), logr.FromSlogHandler(o.log.Handler()))
}

// Start starts a control plane and returns when its API server serves and its Nodes are
// there. Controllers and scheduler come up meanwhile. The config has administrator's
// rights. When the test ends, everything is stopped, and its data is gone.
func Start(t testing.TB, opts ...Option) *rest.Config {
	t.Helper()
	config, stop, err := New(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return config
}

// New is Start for where there is no test: a TestMain, a suite's setup, an example. stop
// ends the control plane and waits for it; it returns why parts ended before, if any did.
func New(opts ...Option) (config *rest.Config, stop func() error, err error) {
	o := options{
		controllers: []string{"*"}, scheduler: true, nodes: 1, log: slog.New(slog.DiscardHandler),
		debug: &controllers.Debug{}, clock: clock.RealClock{},
	}
	for _, opt := range opts {
		opt(&o)
	}
	if o.components == nil {
		o.components = maps.Clone(componentstatus.DefaultAddresses)
		if len(o.controllers) > 0 {
			o.components["controller-manager"] = componentstatus.InProcess
		}
		if o.scheduler {
			o.components["scheduler"] = componentstatus.InProcess
		}
	}
	for plugin, undoes := range undone {
		if !controllers.Enabled(o.controllers, undoes) && !slices.Contains(o.admission.Enable, plugin) {
			o.admission.Disable = append(slices.Clone(o.admission.Disable), plugin)
		}
	}
	ctx, cancel := context.WithCancel(o.logged())
	var server sync.WaitGroup
	begin := startServer
	if o.external != "" {
		begin = takeExternal
	}
	users, closeServer, err := begin(ctx, o, &server)
	if err == nil {
		config, err = users.config(administrator, "system:masters")
	}
	if err != nil {
		cancel()
		return nil, nil, fmt.Errorf("testenv: %w", err)
	}
	stopParts := startParts(users, o)
	stop = sync.OnceValue(func() error {
		err := stopParts()
		cancel()
		server.Wait()
		closeServer()
		authorities.Delete(users.host)
		return err
	})
	authorities.Store(users.host, users)
	if err := installCRDs(ctx, config, o.crds); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("testenv: %w", err), stop())
	}
	return config, stop, nil
}

// startParts starts what stands on the API server, and waits for the Nodes.
func startParts(users *users, o options) (stop func() error) {
	ctx, cancel := context.WithCancel(o.logged())
	var (
		running  sync.WaitGroup
		mu       sync.Mutex
		failures error
	)
	run := func(name string, f func() error) {
		running.Go(func() {
			if err := f(); err != nil && ctx.Err() == nil {
				mu.Lock()
				defer mu.Unlock()
				failures = errors.Join(failures, fmt.Errorf("testenv: the %s ended: %w", name, err))
			}
		})
	}
	if len(o.controllers) > 0 {
		run("controllers", func() error {
			config, err := users.component("system:kube-controller-manager")
			if err != nil {
				return err
			}
			return controllers.Run(ctx, config, controllers.Options{
				Controllers: o.controllers, As: users.controller, Settings: users.settings, Log: o.log, Debug: o.debug,
			})
		})
	}
	if o.scheduler {
		run("scheduler", func() error {
			config, err := users.component("system:kube-scheduler")
			if err != nil {
				return err
			}
			return scheduler.Run(ctx, config, scheduler.Options{Log: o.log})
		})
	}
	if o.nodes > 0 {
		ready, ended := make(chan struct{}), make(chan struct{})
		run("nodes", func() error {
			defer close(ended)
			return node.Run(ctx, nil, node.Options{
				Count: o.nodes, Identity: users.node, ClientCAs: users.clientCAs(), Log: o.log, Ready: func() {
					close(ready)
				},
			})
		})
		select {
		case <-ready:
		case <-ended: // with an error that stop tells
		}
	}
	return func() error {
		cancel()
		running.Wait()
		return failures
	}
}

// startServer starts etcd and the API server. stop is for when the server has ended.
func startServer(ctx context.Context, o options, running *sync.WaitGroup) (of *users, stop func(), err error) {
	dir, err := os.MkdirTemp(memoryDisk(), "coxswain-test-")
	if err != nil {
		return nil, nil, err
	}
	undo := []func(){func() { _ = os.RemoveAll(dir) }}
	stop = func() {
		for i := len(undo) - 1; i >= 0; i-- {
			undo[i]()
		}
	}
	defer func() {
		if err != nil {
			stop()
		}
	}()
	backend, err := storage.StartEmbedded(ctx, storage.EmbeddedOptions{Dir: dir, Unsafe: true, Log: o.log})
	if err != nil {
		return nil, nil, err
	}
	undo = append(undo, func() { _ = backend.Close() })
	store, err := storage.Open(ctx, backend, storage.Options{Log: o.log})
	if err != nil {
		return nil, nil, err
	}
	undo = append(undo, func() { _ = store.Close() })
	ca, err := pki.NewCA()
	if err != nil {
		return nil, nil, err
	}
	authentication, err := o.credentials(ca)
	if err != nil {
		return nil, nil, err
	}
	proxyClient, err := believe(&authentication)
	if err != nil {
		return nil, nil, err
	}
	toNodes, err := kubeletClient(ca)
	if err != nil {
		return nil, nil, err
	}
	server, err := apiserver.New(ctx, apiserver.Options{
		Store: store, Registry: api.NewRegistry(append(builtin.Kinds(), builtin.Metrics()...)...),
		Log: o.log, Clock: o.clock,
		Authentication: authentication, ProxyClient: proxyClient.Current,
		Admission:  o.admission,
		Components: o.components,
		Kubelet:    proxy.KubeletOptions{Certificate: &toNodes},
		Debug:      map[string]http.Handler{controllers.DebugPath: o.debug},
	})
	if err != nil {
		return nil, nil, err
	}
	cert, err := ca.Serving("127.0.0.1", "localhost")
	if err != nil {
		return nil, nil, err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	running.Go(func() { _ = server.Serve(ctx, ln, apiserver.TLSConfig(cert)) })
	<-server.PolicyWritten()
	settings, err := signing(ca, authentication.ServiceAccounts)
	if err != nil {
		return nil, nil, err
	}
	return &users{ca: ca, host: fmt.Sprintf("https://%s", ln.Addr()), settings: settings}, stop, nil
}

// kubeletClient is whom the nodes take the API server for.
func kubeletClient(ca *pki.CA) (tls.Certificate, error) {
	cert, key, err := ca.Client(authz.KubeletClient)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(cert, key)
}

// memoryDisk is a folder in memory where the system has one.
func memoryDisk() string {
	const shm = "/dev/shm"
	if info, err := os.Stat(shm); err == nil && info.IsDir() {
		return shm
	}
	return ""
}
