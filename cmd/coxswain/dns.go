package main

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/coxswain-dev/coxswain/network/dns"
)

type dnsFlags struct {
	time      timing
	listen    []string
	namespace string
	options   dns.Options
	pods      string
	synced    atomic.Bool
}

func (f *dnsFlags) add(fs *pflag.FlagSet) {
	fs.StringSliceVar(&f.listen, "listen", []string{":53"},
		"addresses to serve on over UDP and TCP; several processes can share one")
	fs.StringVar(&f.namespace, "network-namespace", "", "a network namespace to listen in, such as netns in a node "+
		"agent's folder or /run/netns/NAME; by default the process's own, which always sends upstream queries")
	fs.StringVar(&f.options.Domain, "cluster-domain", "cluster.local", "domain of the cluster's names")
	fs.StringSliceVar(&f.options.Upstreams, "upstream", nil, "addresses of the servers that other queries are "+
		"forwarded to; if empty, the servers in --resolv-conf, which is reloaded when it changes")
	fs.StringVar(&f.options.ResolvConf, "resolv-conf", "/etc/resolv.conf", "file with the upstream servers")
	fs.StringVar(&f.pods, "pod-names", string(dns.PodNamesInsecure), "names of pods that resolve below "+
		"pod.CLUSTER-DOMAIN: insecure (every address in an existing namespace), verified (addresses of pods) or "+
		"disabled")
	fs.IntVar(&f.options.CacheEntries, "cache-size", 10_000, "how many responses of upstream servers to cache")
	fs.IntVar(&f.options.CacheBytes, "cache-bytes", 32<<20, "approximate memory limit of the cache")
	fs.IntVar(&f.options.MaxForwards, "max-concurrent", 1000, "how many upstream queries may be in progress; one "+
		"client may have a quarter of them")
	fs.IntVar(&f.options.MaxConnections, "max-connections", 1000, "how many TCP connections may be open; one client "+
		"may have a quarter of them")
}

func (f *dnsFlags) check() error {
	for name, n := range map[string]int{"cache-size": f.options.CacheEntries, "cache-bytes": f.options.CacheBytes,
		"max-concurrent": f.options.MaxForwards, "max-connections": f.options.MaxConnections} {
		if n < 1 {
			return fmt.Errorf("--%s: must be at least 1", name)
		}
	}
	return nil
}

func newDNS() *cobra.Command {
	registry := prometheus.NewRegistry()
	f, p := &dnsFlags{}, &processFlags{}
	cmd := &cobra.Command{
		Use:   "dns",
		Short: "Run the cluster's DNS server, as CoreDNS does in clusters of kubeadm",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return err
			}
			f.options.Metrics = registry
			p.endpoint.ready = f.synced.Load
			return p.run(cmd.Context(), registry, f.run)
		},
	}
	p.add(cmd.Flags(), "coxswain-dns", "127.0.0.1:9153")
	f.add(cmd.Flags())
	return cmd
}

func (f *dnsFlags) run(ctx context.Context, as identities) error {
	o := f.options
	o.PodNames, o.Clock = dns.PodNames(f.pods), f.time.clock()
	o.Ready = func() { f.synced.Store(true) }
	var namespace *os.File
	if f.namespace != "" {
		var err error
		if namespace, err = os.Open(f.namespace); err != nil {
			return fmt.Errorf("--network-namespace: %w", err)
		}
		defer func() { _ = namespace.Close() }()
	}
	sockets, err := dns.Listen(f.listen, namespace)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	o.Sockets = sockets
	return dns.Run(ctx, as.main, o)
}
