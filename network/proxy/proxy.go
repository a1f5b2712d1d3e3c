// Package proxy implements Services with nftables in one network namespace, as kube-proxy does in its mode nftables
// (KEP-3866).
//
// Inputs are Services, EndpointSlices, ServiceCIDRs and the proxy's own Nodes, from informers. Outputs are the tables
// ip and ip6 kube-proxy, deleted UDP flows, and the HTTP servers of health check node ports. In the order of one
// change:
//
//	informers.go         records the changed Services
//	run_linux.go         collects changes and commits them; does a full sync after failures
//	service.go           the ports of a Service, in each address family
//	endpoints.go         the endpoints that a port uses: policies, topology hints, terminating endpoints
//	compile.go           the rules of one Service: elements of sets and maps, and a few chains
//	state.go             the rules of all Services, conflicts about addresses, and changes
//	machine.go           external addresses on the machine around the namespace
//	services_linux.go    the ruleset: all Services and their tables
//	layout.go            the sets of every table, and the kinds of chains
//	table_linux.go       the chains of every table, and the rules in chains
//	expressions_linux.go the expressions of rules
//	commit_linux.go      one transaction: the changes, or all differences from the kernel
//	conntrack_linux.go   deletes UDP flows to endpoints that are gone
//	affinity_linux.go    deletes session affinity to endpoints that are gone
//	health.go            the servers of health check node ports
//	healthz.go           the health of the proxy itself
//	metrics.go           kube-proxy's metrics
//
// Most Services have no chain of their own. The map service-ips maps a packet's destination to the chain pick-N for N
// endpoints. That chain draws a number, and finds the endpoint with this number in the map endpoints. So a change of a
// Service is a change of a few elements, however many Services there are.
//
// The package knows the API through client-go only. It must not import parts of the control plane.
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

// Options configure a proxy. Nodes are required.
type Options struct {
	// Namespace is the network namespace that the proxy programs; nil stands for the process's. It must stay open until
	// Run returns.
	Namespace *os.File
	// Nodes are the names of the Nodes whose pods are in the namespace. Endpoints on them are local, node ports are
	// served at their addresses, and topology hints are compared with their zones.
	Nodes []string
	// NodePortAddresses are the ranges of the Nodes' addresses at which node ports are served. If empty, they are
	// served at each Node's first address of either family, as with "primary" in kube-proxy.
	NodePortAddresses []netip.Prefix
	// Machine, if not nil, forwards packets for external addresses to the namespace.
	Machine Machine
	// Reserved are TCP addresses and ports that no external address may take over. The API servers, the endpoints of
	// the Service kubernetes, are always reserved.
	Reserved []netip.AddrPort
	// MasqueradeAll makes the proxy masquerade all packets to cluster IPs.
	MasqueradeAll bool
	// ClusterCIDRs are the pods' ranges, at most one of each family. Packets from other sources to cluster IPs are
	// masqueraded. Packets from pods to external addresses ignore traffic policy Local. If empty, only the Nodes' own
	// pods ignore it, and packets to cluster IPs are not masqueraded.
	ClusterCIDRs []netip.Prefix
	// MinSyncPeriod is the least time between two commits, during which changes are collected; zero selects 10 ms.
	MinSyncPeriod time.Duration
	// SyncPeriod is the interval between full syncs, which compare the tables with the kernel's; zero selects 10
	// minutes.
	SyncPeriod time.Duration
	// Health, if not nil, receives the health of the proxy.
	Health *Health
	// Metrics is the registry of the proxy's metrics while it runs; nil registers none.
	Metrics prometheus.Registerer
	// Ready, if not nil, is called after the first commit of all tables.
	Ready func()
	// Clock is the proxy's clock; nil selects the real one.
	Clock clock.WithTicker
	// Log receives the log lines; nil selects slog.Default.
	Log *slog.Logger
}

func (o *Options) complete() error {
	if len(o.Nodes) == 0 {
		return errors.New("no Nodes are configured")
	}
	var count [families]int
	for _, r := range o.ClusterCIDRs {
		for f := range families {
			if f.has(r.Addr()) {
				count[f]++
			}
		}
	}
	if max(count[ipv4], count[ipv6]) > 1 {
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
