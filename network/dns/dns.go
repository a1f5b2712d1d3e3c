// Package dns is the cluster's DNS server. It answers names of Services and pods by the Kubernetes DNS specification
// 1.1, with CoreDNS's choices where the specification leaves some, and forwards all other questions to the machine's
// resolvers.
//
// Inputs are questions of clients, and Services, EndpointSlices and Namespaces from informers. Outputs are answers, and
// questions to other servers. In the order of one question:
//
//	sockets.go    the server's sockets, in the process's network namespace or another one
//	serve.go      packets and connections, and limits on them (share.go: per client)
//	handler.go    turns a packet into a packet: checks, aliases, negative answers, EDNS, truncation
//	zone.go       the records of a name (name.go: names and addresses as text)
//	index.go      Services and endpoints by name and address; watch.go keeps it in step with the API
//	forward.go    questions to other servers, without duplicates, with failover
//	upstreams.go  the list of these servers; loop.go detects the ones that forward to this server
//	cache.go      their answers, bounded in number, bytes and time
//	metrics.go    metrics with CoreDNS's names, for its dashboards
//
// The controller clusterdns publishes the DNS servers of nodes as the Service kube-dns. A server has no state that a
// restart would lose.
//
// Package github.com/miekg/dns encodes and decodes messages; it is called dns here too. Of this module, the package
// imports only informer and netns.
package dns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
)

// Options configure a server. Only Sockets are required.
type Options struct {
	// Domain is the cluster's domain; empty selects cluster.local.
	Domain string
	// Sockets are the sockets to serve; see Listen. Run closes them.
	Sockets *Sockets
	// Upstreams are the servers that other questions are forwarded to, at most 15 addresses with or without ports. If
	// there are none, the servers of ResolvConf are used, as they are in the file at that time. They are reached from
	// the network namespace of the process.
	Upstreams []string
	// ResolvConf is the file that lists the upstreams; empty selects /etc/resolv.conf.
	ResolvConf string
	// PodNames selects the names of pods that exist; empty selects PodNamesInsecure.
	PodNames PodNames
	// CacheEntries and CacheBytes limit the cache of upstream answers; zero selects 10,000 and 32 MiB.
	CacheEntries, CacheBytes int
	// MaxForwards limits the concurrent questions to upstreams, MaxConnections the TCP connections; zero selects 1,000.
	// One client may have a quarter of each.
	MaxForwards, MaxConnections int
	// Ready, if not nil, is called once, when the server knows all Services. Before, questions about the cluster's
	// names wait for up to 4.5 seconds and are then answered with SERVFAIL.
	Ready func()
	// Clock is the time of the cache and of the rests of failed upstreams; nil selects the real clock. Deadlines of
	// sockets always use the real one.
	Clock clock.Clock
	// Log receives the log lines; nil selects slog.Default.
	Log *slog.Logger
	// Metrics is the registry of the server's metrics; nil registers none.
	Metrics prometheus.Registerer
}

func (o *Options) complete() error {
	o.Domain = strings.ToLower(strings.Trim(cmp.Or(o.Domain, "cluster.local"), "."))
	if !sendable(o.Domain) {
		return fmt.Errorf("%q is not a domain", o.Domain)
	}
	if o.Sockets == nil {
		return errors.New("there are no sockets")
	}
	switch o.PodNames = cmp.Or(o.PodNames, PodNamesInsecure); o.PodNames {
	case PodNamesInsecure, PodNamesVerified, PodNamesDisabled:
	default:
		return fmt.Errorf("pod names: %q is none of insecure, verified and disabled", o.PodNames)
	}
	o.ResolvConf = cmp.Or(o.ResolvConf, "/etc/resolv.conf")
	o.CacheEntries, o.CacheBytes = cmp.Or(o.CacheEntries, 10_000), cmp.Or(o.CacheBytes, 32<<20)
	o.MaxForwards, o.MaxConnections = cmp.Or(o.MaxForwards, 1000), cmp.Or(o.MaxConnections, 1000)
	o.Log = cmp.Or(o.Log, slog.Default())
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	return nil
}

// Run answers questions until ctx ends, waits for its goroutines and returns nil. It returns early if the options are
// invalid.
func Run(ctx context.Context, config *rest.Config, o Options) error {
	if o.Sockets != nil {
		defer func() { _ = o.Sockets.Close() }()
	}
	if err := o.complete(); err != nil {
		return fmt.Errorf("dns: %w", err)
	}
	config = rest.CopyConfig(config)
	config.UserAgent = cmp.Or(config.UserAgent, "coxswain-dns")
	connections, err := rest.HTTPClientFor(config)
	if err != nil {
		return fmt.Errorf("dns: create client: %w", err)
	}
	defer utilnet.CloseIdleConnectionsFor(connections.Transport)
	client, err := kubernetes.NewForConfigAndClient(config, connections)
	if err != nil {
		return fmt.Errorf("dns: create client: %w", err)
	}
	if err := run(ctx, client, o); err != nil {
		return fmt.Errorf("dns: %w", err)
	}
	return nil
}

func run(ctx context.Context, client kubernetes.Interface, o Options) error {
	h, serial, err := newHandler(o)
	if err != nil {
		return err
	}
	if o.Metrics != nil {
		if err := h.metrics.register(o.Metrics); err != nil {
			return err
		}
		defer h.metrics.unregister(o.Metrics)
	}
	w, err := newWatch(client, h.zone.index, o.PodNames == PodNamesVerified, o.Log,
		func() { serial.Store(uint32(o.Clock.Now().Unix())) })
	if err != nil {
		return err
	}
	h.zone.hasPod = w.hasPod

	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	w.factory.StartWithContext(ctx)
	defer w.factory.Shutdown()
	defer cancel()
	running.Go(func() {
		w.run(ctx, func() {
			close(h.filled)
			o.Log.Info("serving names", "domain", o.Domain, "at", o.Sockets.Addresses())
			if o.Ready != nil {
				o.Ready()
			}
		})
	})
	s := &server{handler: h, log: o.Log, clock: o.Clock, forwards: newShare(o.MaxForwards, o.MaxForwards/4),
		connections: newShare(o.MaxConnections, o.MaxConnections/4)}
	s.run(ctx, o.Sockets)
	h.forward.probing.Wait()
	return nil
}

// newHandler returns a handler with an empty index, and the serial number of its zone.
func newHandler(o Options) (*handler, *atomic.Uint32, error) {
	m := newMetrics(o.Clock)
	serial := &atomic.Uint32{}
	serial.Store(uint32(o.Clock.Now().Unix()))
	u := &upstreams{own: o.Sockets.Addresses(), clock: o.Clock, log: o.Log}
	if len(o.Upstreams) == 0 {
		u.file = o.ResolvConf
	} else if _, err := parseUpstreams(o.Upstreams); err != nil {
		return nil, nil, err
	}
	u.set(o.Upstreams)
	h := &handler{
		zone: &zone{domain: o.Domain + ".", index: newIndex(), pods: o.PodNames, serial: serial.Load},
		forward: &forward{
			cache: newCache(o.CacheEntries, o.CacheBytes, o.Clock, m), upstreams: u, clock: o.Clock, log: o.Log,
			metrics: m, flights: map[cacheKey]*flight{}, down: map[netip.AddrPort]time.Time{},
		},
		filled: make(chan struct{}), clock: o.Clock, metrics: m,
	}
	return h, serial, nil
}
