// Package proxy makes Services' addresses lead to their endpoints, by nftables in one network namespace, as kube-proxy
// does in its mode nftables (KEP-3866).
//
// What comes in: Services, EndpointSlices, ServiceCIDRs and the proxy's own Nodes, from informers. What goes out:
// the tables ip and ip6 kube-proxy, deleted UDP flows, and the HTTP servers of health check node ports. In between,
// following one change:
//
//	informers.go         notes which Service changed
//	run.go               collects changes and commits them; begins anew after failures
//	service.go           what a Service asks for, in each family of addresses
//	endpoints.go         which endpoints it uses: policies, topology hints, terminating endpoints
//	compile.go           the rules of one Service: elements of sets and maps, and a few chains
//	state.go             the rules of all Services, who is right where two claim an address, and what changed
//	machine.go           external addresses on the machine around the namespace
//	services_linux.go    the Services as the tables have them
//	layout.go            the sets that every table has, and what a chain can do
//	table_linux.go       the chains that every table has, and the rules in chains
//	expressions_linux.go what rules are made of
//	commit_linux.go      one transaction: the changes, or all that differs from what the kernel has
//	conntrack_linux.go   UDP flows that lead nowhere any more
//	affinity_linux.go    clients that are remembered with an endpoint that is gone
//	health.go            the servers of health check node ports
//	healthz.go           whether the proxy itself is well
//	metrics.go           what dashboards query
//
// Most Services have no chain of their own. A packet's destination is looked up in the map service-ips, which sends
// it to the chain pick-N for N endpoints; that draws a number, and finds the endpoint of this number in the map
// endpoints. A change of a Service is therefore a change of a few elements, however many Services there are.
//
// The package knows the API by client-go only. It must not import parts of the control plane.
package proxy

import (
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
)

// Options configure a proxy. Nodes must be set.
type Options struct {
	// Namespace is the network namespace that the proxy programs; nil is that of the process. It must stay open
	// until Run returns.
	Namespace *os.File
	// Nodes are the names of the Nodes whose pods are in the namespace. Their endpoints are the local ones, their
	// addresses have the node ports, and their zones are those that topology hints are compared with.
	Nodes []string
	// NodePortAddresses are the ranges of the Nodes' addresses at which node ports are served. Where there are
	// none, these are each Node's first addresses of either family, as with "primary" in kube-proxy.
	NodePortAddresses []netip.Prefix
	// Machine, if not nil, passes packets for external addresses on to the namespace.
	Machine Machine
	// Reserved are addresses and ports of TCP that no external address takes over, besides those of the API servers,
	// which are the endpoints of the Service kubernetes.
	Reserved []netip.AddrPort
	// MasqueradeAll replaces the source of all packets to cluster IPs.
	MasqueradeAll bool
	// ClusterCIDRs are the pods' ranges, at most one of each family. Packets from elsewhere to cluster IPs are
	// masqueraded; for packets from there to external addresses policy Local does not count. Where there is none, the
	// latter are those of the Nodes' own pods, and the former are not masqueraded.
	ClusterCIDRs []netip.Prefix
	// MinSyncPeriod is the shortest time between two commits; changes meanwhile are collected. 10 ms where zero.
	MinSyncPeriod time.Duration
	// SyncPeriod is how often the tables are compared with the kernel's; 10 minutes where zero.
	SyncPeriod time.Duration
	// Health, if not nil, is told how the proxy is.
	Health *Health
	// Metrics is where the proxy registers its metrics while it runs; nowhere if nil.
	Metrics prometheus.Registerer
	// Ready, if not nil, is called after the first commit of all tables.
	Ready func()
	// Clock is the proxy's time; the real one where nil.
	Clock clock.WithTicker
	// Log receives the log lines; slog.Default where nil.
	Log *slog.Logger
}

func (o *Options) complete() error {
	if len(o.Nodes) == 0 {
		return errors.New("no Node is named")
	}
	var of [families]int
	for _, r := range o.ClusterCIDRs {
		for f := range families {
			if f.has(r.Addr()) {
				of[f]++
			}
		}
	}
	if max(of[ipv4], of[ipv6]) > 1 {
		return errors.New("more than one cluster CIDR of a family")
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.MinSyncPeriod <= 0 {
		o.MinSyncPeriod = 10 * time.Millisecond
	}
	if o.SyncPeriod <= 0 {
		o.SyncPeriod = 10 * time.Minute
	}
	if o.Health == nil {
		o.Health = NewHealth(o.Clock)
	}
	return nil
}
