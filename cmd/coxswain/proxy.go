package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/network/proxy"
)

// proxyFlags are kube-proxy's flags, and --network-namespace.
type proxyFlags struct {
	kubeconfig        string
	nodes             []string
	nodePortAddresses []string
	clusterCIDRs      []string
	mode              string
	namespace         string
	cleanup           bool
	healthz, metrics  string
	options           proxy.Options
}

func newProxy() *cobra.Command {
	f := &proxyFlags{}
	cmd := &cobra.Command{
		Use:   "proxy",
		Short: "Forward Services' addresses to their endpoints, as kube-proxy does with nftables",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.complete(); err != nil {
				return err
			}
			return f.run(cmd.Context())
		},
	}
	f.add(cmd.Flags())
	return cmd
}

func (f *proxyFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.kubeconfig, "kubeconfig", "",
		"kubeconfig of the API server; empty uses KUBECONFIG and kubectl's other places")
	fs.StringSliceVar(&f.nodes, "hostname-override", nil, "names of the Nodes whose pods are in the network "+
		"namespace, several separated by commas; the host name if empty")
	fs.StringSliceVar(&f.nodePortAddresses, "nodeport-addresses", []string{"primary"}, "ranges of the Nodes' "+
		"addresses that serve node ports; primary is each Node's first address of either family")
	fs.BoolVar(&f.options.MasqueradeAll, "masquerade-all", false, "masquerade all packets to cluster IPs")
	fs.StringSliceVar(&f.clusterCIDRs, "cluster-cidr", nil, "the pods' ranges, one of each family: packets from "+
		"elsewhere to cluster IPs are masqueraded, and pods are internal clients of Services with external policy "+
		"Local")
	fs.StringVar(&f.mode, "proxy-mode", "nftables", "must be nftables")
	fs.DurationVar(&f.options.MinSyncPeriod, "nftables-min-sync-period", 10*time.Millisecond,
		"shortest time between two commits of changes")
	fs.DurationVar(&f.options.SyncPeriod, "nftables-sync-period", 10*time.Minute,
		"how often to compare the tables with the kernel's")
	fs.StringVar(&f.healthz, "healthz-bind-address", "0.0.0.0:10256",
		`where to serve /healthz and /livez; "" for nowhere`)
	fs.StringVar(&f.metrics, "metrics-bind-address", "127.0.0.1:10249",
		`where to serve /metrics, /proxyMode and /healthz; "" for nowhere`)
	fs.StringVar(&f.namespace, "network-namespace", "", "a network namespace, such as netns in a node agent's folder "+
		"or /run/netns/NAME; by default the process's own")
	fs.BoolVar(&f.cleanup, "cleanup", false, "remove the proxy's tables and exit")
}

// complete checks the flags and converts them to options.
func (f *proxyFlags) complete() error {
	if f.mode != "nftables" {
		return fmt.Errorf("--proxy-mode: %q is not nftables, the only mode", f.mode)
	}
	if f.options.Nodes = f.nodes; len(f.nodes) == 0 {
		name, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("--hostname-override: %w", err)
		}
		f.options.Nodes = []string{name}
	}
	var err error
	if !slices.Equal(f.nodePortAddresses, []string{"primary"}) {
		if f.options.NodePortAddresses, err = prefixes("nodeport-addresses", f.nodePortAddresses); err != nil {
			return err
		}
	}
	if f.options.ClusterCIDRs, err = prefixes("cluster-cidr", f.clusterCIDRs); err != nil {
		return err
	}
	return errors.Join(named("healthz-bind-address", isListenAddress(f.healthz)),
		named("metrics-bind-address", isListenAddress(f.metrics)))
}

func named(flag string, err error) error {
	if err != nil {
		return fmt.Errorf("--%s: %w", flag, err)
	}
	return nil
}

func prefixes(flag string, texts []string) ([]netip.Prefix, error) {
	var all []netip.Prefix
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("--%s: %q is not a range of addresses, such as 10.0.0.0/8", flag, text)
		}
		all = append(all, p.Masked())
	}
	return all, nil
}

func (f *proxyFlags) run(ctx context.Context) error {
	if f.cleanup {
		return f.follow(ctx, func(_ context.Context, namespace *os.File) error { return proxy.Cleanup(namespace) })
	}
	as, err := loadIdentities(f.kubeconfig)
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	f.options.Metrics, f.options.Clock = registry, clock.RealClock{}
	f.options.Health = proxy.NewHealth(f.options.Clock)
	stop, err := f.serve(registry)
	if err != nil {
		return err
	}
	defer stop()
	return f.follow(ctx, func(ctx context.Context, namespace *os.File) error {
		o := f.options
		o.Namespace = namespace
		return proxy.Run(ctx, as.main, o)
	})
}

// follow calls run with the network namespace that the flag names.
func (f *proxyFlags) follow(ctx context.Context, run func(context.Context, *os.File) error) error {
	if f.namespace == "" {
		return run(ctx, nil)
	}
	return proxy.Follow(ctx, f.namespace, clock.RealClock{}, run)
}

// serve serves health and metrics over HTTP, as kube-proxy does, until stop is called.
func (f *proxyFlags) serve(registry *prometheus.Registry) (stop func(), err error) {
	health, metrics := http.NewServeMux(), http.NewServeMux()
	for _, path := range []string{"/healthz", "/livez"} {
		health.Handle(path, f.options.Health)
		metrics.Handle(path, f.options.Health)
	}
	metrics.HandleFunc("/proxyMode", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(f.mode)) })
	all := append(prometheus.Gatherers{registry}, processMetrics...)
	metrics.Handle("/metrics", promhttp.HandlerFor(all, promhttp.HandlerOpts{}))
	stopHealth, err := serveHTTP("healthz-bind-address", f.healthz, health)
	if err != nil {
		return nil, err
	}
	stopMetrics, err := serveHTTP("metrics-bind-address", f.metrics, metrics)
	if err != nil {
		stopHealth()
		return nil, err
	}
	return func() { stopMetrics(); stopHealth() }, nil
}

// serveHTTP serves on the address of a flag until stop is called. It does nothing if the address is empty.
func serveHTTP(flag, address string, handler http.Handler) (stop func(), err error) {
	if address == "" {
		return func() {}, nil
	}
	ln, err := listen(flag, address)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	server := newEndpoint(ctx, handler)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			slog.Warn("failed to serve", "flag", flag, "err", err)
		}
	}()
	return func() { cancel(); _ = server.Close(); <-ended }, nil
}
