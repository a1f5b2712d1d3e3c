// Package policy enforces NetworkPolicies (networking.k8s.io/v1) by nftables, on the pods of one machine.
//
// What comes in: pods, namespaces, policies and Nodes, from informers. What goes out: one table, inet coxswain-policy,
// in the network namespace that routes the pods' packets. In between:
//
//	enforce.go       objects go to the compiler, its changes to the kernel      (informers.go: where they come from)
//	cluster.go       pods, namespaces and policies, as far as they matter here
//	compiler.go      keeps a Ruleset in step with them, change by change; does no I/O
//	selector.go      which pods a selector selects, by an index of labels
//	group.go         pods that the same policies select share a chain
//	body.go          the rules of one policy, and the bounds of what they expand to
//	ranges.go        blocks of addresses without their exceptions; ports
//	ruleset.go       sets and chains as data        (changes.go: from one state to the next)
//	kernel_linux.go  … and as transactions of nftables
//	allowed.go       the API's documentation word by word, for single flows: what rules are tested against
//	metrics.go       what dashboards ask for
//
// A packet between pods passes the base chains egress and ingress. Each has a map from the addresses of isolated pods
// to the chain of the pod's policies, which asks them in turn and drops what none allows. Peers are sets of addresses,
// shared by equal selectors: a pod that comes or goes changes elements and no rule.
//
// Which choices the API leaves open, and which were made, is in docs/network-policies.md. The package must not import
// what programs Services or the pods' network: it sees packets as those leave them.
package policy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
)

// Options say whose pods are protected, and where their packets pass. Nodes are needed.
type Options struct {
	// Namespace is the network namespace that routes the pods' packets; the process's own where nil. It must stay open
	// until Run has returned.
	Namespace *os.File
	// Nodes are those whose pods' traffic is decided about.
	Nodes []string
	// NodeAddresses, if not nil, returns the machine's own addresses as pods see them, besides those in the Nodes'
	// status. They always reach the machine's pods and are reached by them. It is called often, and must be quick.
	NodeAddresses func() []netip.Addr
	// Served are addresses of the network namespace itself that pods reach only if their egress policies allow it, such
	// as that of the cluster's DNS server.
	Served []netip.Addr
	// Clock is the enforcer's time. The real one where nil.
	Clock clock.WithTicker
	// Log receives the log lines; slog.Default where nil.
	Log *slog.Logger
	// Metrics is where the enforcer registers its metrics; nowhere if nil.
	Metrics prometheus.Registerer
}

func (o *Options) complete() error {
	if len(o.Nodes) == 0 {
		return errors.New("no Nodes are named whose pods are protected")
	}
	if o.NodeAddresses == nil {
		o.NodeAddresses = func() []netip.Addr { return nil }
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return nil
}

// Run enforces the cluster's policies until ctx ends, and then returns nil. The rules stay in the kernel, so that
// nothing opens while an enforcer is started again; Cleanup removes them. Run returns early, with an error, if the
// options are wrong or the machine has no nftables.
func Run(ctx context.Context, config *rest.Config, o Options) error {
	if err := o.complete(); err != nil {
		return fmt.Errorf("network policy: %w", err)
	}
	config = rest.CopyConfig(config)
	if config.UserAgent == "" {
		config.UserAgent = "coxswain-network-policy"
	}
	connections, err := rest.HTTPClientFor(config)
	if err != nil {
		return fmt.Errorf("network policy: client: %w", err)
	}
	defer utilnet.CloseIdleConnectionsFor(connections.Transport)
	client, err := kubernetes.NewForConfigAndClient(config, connections)
	if err != nil {
		return fmt.Errorf("network policy: client: %w", err)
	}
	k, err := openKernel(o.Namespace)
	if err != nil {
		return fmt.Errorf("network policy: %w", err)
	}
	defer k.Close()
	e := newEnforcer(k, o)
	if o.Metrics != nil {
		if err := e.metrics.register(o.Metrics); err != nil {
			return fmt.Errorf("network policy: %w", err)
		}
		defer e.metrics.unregister(o.Metrics)
	}
	return e.follow(ctx, client)
}
