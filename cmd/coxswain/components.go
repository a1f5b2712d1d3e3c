package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/node"
	"github.com/coxswain-dev/coxswain/scheduler"
	schedulerconfig "github.com/coxswain-dev/coxswain/scheduler/config"
)

// component runs until ctx ends.
type component func(ctx context.Context, as identities) error

// processFlags are those of a component that is a process of its own.
type processFlags struct {
	kubeconfig string
	address    string
}

func (f *processFlags) add(fs *pflag.FlagSet, address string) {
	fs.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig of the API server; empty uses KUBECONFIG and kubectl's other places")
	fs.StringVar(&f.address, "metrics-bind-address", address, `where to serve /healthz, /metrics and /debug/pprof over HTTP; "" for nowhere`)
}

// leaderFlags are those of a component of which one at a time acts.
type leaderFlags struct {
	elect                                     bool
	leaseDuration, renewDeadline, retryPeriod time.Duration
}

func (f *leaderFlags) add(fs *pflag.FlagSet) {
	fs.BoolVar(&f.elect, "leader-elect", true, "act only while holding the leader's Lease, so that several may run")
	fs.DurationVar(&f.leaseDuration, "leader-elect-lease-duration", 15*time.Second, "how long a lost leader is waited for")
	fs.DurationVar(&f.renewDeadline, "leader-elect-renew-deadline", 10*time.Second, "how long a leader tries to renew before it gives up")
	fs.DurationVar(&f.retryPeriod, "leader-elect-retry-period", 2*time.Second, "how often to try to become or stay the leader")
}

type controllersFlags struct {
	leader      leaderFlags
	controllers []string
	settings    controllers.Settings
}

// addSettings are the flags of single controllers, with kube-controller-manager's names and defaults.
func (f *controllersFlags) addSettings(fs *pflag.FlagSet) {
	n := &f.settings.Node
	fs.DurationVar(&n.MonitorPeriod, "node-monitor-period", 5*time.Second, "how often every Node is looked at")
	fs.DurationVar(&n.MonitorGracePeriod, "node-monitor-grace-period", 50*time.Second, "how long a Node may be silent before its conditions become Unknown")
	fs.DurationVar(&n.StartupGracePeriod, "node-startup-grace-period", time.Minute, "how long a new Node may take to post its status")
	fs.Float32Var(&n.EvictionRate, "node-eviction-rate", 0.1, "how many Nodes of a zone are given up in a second")
	fs.Float32Var(&n.SecondaryEvictionRate, "secondary-node-eviction-rate", 0.01, "the same in a large zone of which many Nodes are not ready; in a small one none is")
	fs.IntVar(&n.LargeClusterSizeThreshold, "large-cluster-size-threshold", 50, "a zone of more Nodes is large")
	fs.Float64Var(&n.UnhealthyZoneThreshold, "unhealthy-zone-threshold", 0.55, "share of Nodes not ready from which a zone counts as disrupted")
}

func newControllers() *cobra.Command {
	f, p := &controllersFlags{}, &processFlags{}
	cmd := &cobra.Command{
		Use:   "controllers",
		Short: "Run the controllers, as kube-controller-manager does",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.run(cmd.Context(), controllers.Metrics(), f.run)
		},
	}
	p.add(cmd.Flags(), "127.0.0.1:10257")
	f.leader.add(cmd.Flags())
	cmd.Flags().StringSliceVar(&f.controllers, "controllers", []string{"*"}, `controllers to run: "*" for all, "foo" for foo, "-foo" for all but foo`)
	f.addSettings(cmd.Flags())
	return cmd
}

func (f *controllersFlags) run(ctx context.Context, as identities) error {
	return controllers.Run(ctx, as.main, controllers.Options{
		Controllers: f.controllers, As: as.controller,
		Settings:    f.settings,
		LeaderElect: f.leader.elect,
		LeaderElection: controllers.LeaderElection{
			LeaseDuration: f.leader.leaseDuration, RenewDeadline: f.leader.renewDeadline, RetryPeriod: f.leader.retryPeriod,
		},
	})
}

type schedulerFlags struct {
	leader  leaderFlags
	config  string
	metrics prometheus.Registerer
}

func newScheduler() *cobra.Command {
	registry := prometheus.NewRegistry()
	f, p := &schedulerFlags{metrics: registry}, &processFlags{}
	cmd := &cobra.Command{
		Use:   "scheduler",
		Short: "Run the scheduler, as kube-scheduler does",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.run(cmd.Context(), registry, f.run)
		},
	}
	p.add(cmd.Flags(), "127.0.0.1:10259")
	f.leader.add(cmd.Flags())
	cmd.Flags().StringVar(&f.config, "config", "", "path to a KubeSchedulerConfiguration (kubescheduler.config.k8s.io/v1); its leaderElection takes the place of the --leader-elect flags")
	return cmd
}

func (f *schedulerFlags) run(ctx context.Context, as identities) error {
	o := scheduler.Options{
		LeaderElect:   f.leader.elect,
		LeaseDuration: f.leader.leaseDuration, RenewDeadline: f.leader.renewDeadline, RetryPeriod: f.leader.retryPeriod,
		Metrics: f.metrics,
	}
	config := as.main
	if f.config == "" {
		return scheduler.Run(ctx, config, o)
	}
	document, err := os.ReadFile(f.config)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	c, err := schedulerconfig.Load(document)
	if err != nil {
		return fmt.Errorf("--config %s: %w", f.config, err)
	}
	o.Config, o.LeaderElect = c, *c.LeaderElection.LeaderElect
	o.LeaseDuration, o.RenewDeadline, o.RetryPeriod = 0, 0, 0 // as the configuration says
	if c.ClientConnection.Kubeconfig != "" {
		if config, err = clientcmd.BuildConfigFromFlags("", c.ClientConnection.Kubeconfig); err != nil {
			return fmt.Errorf("--config %s: clientConnection.kubeconfig: %w", f.config, err)
		}
	}
	if c.ClientConnection.QPS > 0 {
		config = rest.CopyConfig(config)
		config.QPS, config.Burst = c.ClientConnection.QPS, int(c.ClientConnection.Burst)
	}
	return scheduler.Run(ctx, config, o)
}

type nodeFlags struct {
	count   int
	prefix  string
	runtime string
}

func (f *nodeFlags) add(fs *pflag.FlagSet, count int) {
	f.addNames(fs, count, "how many Nodes this process is; 0 for none")
	fs.StringVar(&f.runtime, "runtime", "simulated", "what runs containers: simulated")
}

func (f *nodeFlags) addNames(fs *pflag.FlagSet, count int, usage string) {
	fs.IntVar(&f.count, "nodes", count, usage)
	fs.StringVar(&f.prefix, "node-prefix", "node-", "what the Nodes' names begin with; a number follows")
}

func (f *nodeFlags) check() error {
	if f.count < 0 || f.count > 10000 {
		return errors.New("--nodes: must be between 0 and 10000")
	}
	if f.runtime != "" && f.runtime != "simulated" {
		return fmt.Errorf("--runtime: %q is not one of: simulated", f.runtime)
	}
	return nil
}

// names are those of the Nodes.
func (f *nodeFlags) names() []string {
	names := make([]string, f.count)
	for i := range names {
		names[i] = f.prefix + strconv.Itoa(i)
	}
	return names
}

func newNode() *cobra.Command {
	f, p := &nodeFlags{}, &processFlags{}
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Run the node agent, as the kubelet does, for one or many Nodes",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return err
			}
			return p.run(cmd.Context(), prometheus.NewRegistry(), f.run)
		},
	}
	p.add(cmd.Flags(), "127.0.0.1:10248")
	f.add(cmd.Flags(), 1)
	return cmd
}

func (f *nodeFlags) run(ctx context.Context, as identities) error {
	if f.count == 0 {
		<-ctx.Done()
		return nil
	}
	return node.Run(ctx, as.main, node.Options{Count: f.count, Prefix: f.prefix, Runtime: f.runtime, Identity: as.node})
}

// run runs a component as a process of its own, with its health and metrics served.
func (f *processFlags) run(ctx context.Context, metrics prometheus.Gatherer, c component) error {
	as, err := loadIdentities(f.kubeconfig)
	if err != nil {
		return err
	}
	if f.address != "" {
		stop, err := serveDebug(f.address, metrics)
		if err != nil {
			return fmt.Errorf("--metrics-bind-address: %w", err)
		}
		defer stop()
	}
	return c(ctx, as)
}

// serveDebug serves a component's health, metrics and profiles.
func serveDebug(address string, metrics prometheus.Gatherer) (stop func(), err error) {
	ln, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	ok := func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok")) }
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		mux.HandleFunc(path, ok)
	}
	all := prometheus.Gatherers{metrics, prometheus.DefaultGatherer}
	mux.Handle("/metrics", promhttp.HandlerFor(all, promhttp.HandlerOpts{}))
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			slog.Warn("serving metrics", "error", err)
		}
	}()
	return func() { _ = server.Close(); <-ended }, nil
}
