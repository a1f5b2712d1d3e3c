// Package policy enforces NetworkPolicies (networking.k8s.io/v1) with nftables, for the pods of one machine.
//
// Inputs are pods, namespaces, policies and Nodes, from informers. The output is one table, inet coxswain-policy, in
// the network namespace that routes the pods' packets. In between:
//
//	enforce.go       passes objects to the compiler and its changes to the kernel (informers.go: their source)
//	cluster.go       pods, namespaces and policies, reduced to the fields that matter here
//	compiler.go      updates a Ruleset incrementally with each change of them; does no I/O
//	selector.go      the pods that a selector selects, by an index of labels
//	group.go         one chain for all pods that the same policies select
//	body.go          the rules of one policy, and limits on their size
//	ranges.go        address blocks without their exceptions; port ranges
//	ruleset.go       sets and chains as data        (changes.go: differences between two states)
//	kernel_linux.go  the same as transactions of nftables
//	protect.go       holds back a pod until its policies are in the kernel
//	recheck.go       ends connections that policies no longer allow    (flow.go: evaluates the rules for a flow)
//	allowed.go       the API's documentation, literally, for single flows: the reference for tests
//	metrics.go       the metrics
//
// A packet between pods passes the base chains egress and ingress. Each base chain has a map from the addresses of
// isolated pods to the chain of the pod's policies. That chain evaluates the policies in turn and drops packets that
// none allows. Peers are sets of addresses, shared by equal selectors: a pod that is added or removed changes elements
// but no rule.
//
// docs/network-policies.md lists the choices that the API leaves open, and ours. The package must not import packages
// that program Services or the pods' network: it sees packets as they leave them.
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

// Options select the pods to protect and the namespace that routes their packets. Nodes are required.
type Options struct {
	// Namespace is the network namespace that routes the pods' packets; nil stands for the process's own. It must stay
	// open until Run has returned.
	Namespace *os.File
	// Nodes are the Nodes of this machine. The enforcer protects the pods on them.
	Nodes []string
	// NodeAddresses, if not nil, returns the machine's own addresses as pods see them, in addition to the addresses in
	// the Nodes' status. They can always reach the machine's pods, and vice versa. It is called often and must be
	// quick.
	NodeAddresses func() []netip.Addr
	// Served, if not nil, returns addresses of the network namespace itself that pods reach only if their egress
	// policies allow it, such as the address of the cluster's DNS server. It is called often and must be quick.
	Served func() []netip.Addr
	// Changed, if not nil, is called when the result of Problem may have changed.
	Changed func()
	// Clock is the enforcer's clock; nil selects the real one.
	Clock clock.WithTicker
	// Log receives the log lines; nil selects slog.Default.
	Log *slog.Logger
	// Metrics is the registry of the enforcer's metrics; nil registers none.
	Metrics prometheus.Registerer
}

func (o *Options) complete() error {
	if len(o.Nodes) == 0 {
		return errors.New("no Nodes are configured")
	}
	none := func() []netip.Addr { return nil }
	if o.NodeAddresses == nil {
		o.NodeAddresses = none
	}
	if o.Served == nil {
		o.Served = none
	}
	if o.Changed == nil {
		o.Changed = func() {}
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return nil
}

// Run calls New and Enforcer.Run: it enforces the cluster's policies until ctx ends, and then returns nil.
func Run(ctx context.Context, config *rest.Config, o Options) error {
	e, err := New(config, o)
	if err != nil {
		return err
	}
	return e.Run(ctx)
}

// New returns an enforcer. It has no effect before Run. New fails if the options are invalid.
func New(config *rest.Config, o Options) (*Enforcer, error) {
	if err := o.complete(); err != nil {
		return nil, fmt.Errorf("network policy: %w", err)
	}
	config = rest.CopyConfig(config)
	if config.UserAgent == "" {
		config.UserAgent = "coxswain-network-policy"
	}
	e := newEnforcer(nil, o)
	var err error
	if e.connections, err = rest.HTTPClientFor(config); err != nil {
		return nil, fmt.Errorf("network policy: create client: %w", err)
	}
	if e.client, err = kubernetes.NewForConfigAndClient(config, e.connections); err != nil {
		return nil, fmt.Errorf("network policy: create client: %w", err)
	}
	return e, nil
}

// Run enforces policies until ctx ends, and then returns nil. Call it once. The rules stay in the kernel, so that pods
// stay isolated while an enforcer restarts; Cleanup removes them. Run returns early, with an error, if the machine has
// no nftables.
func (e *Enforcer) Run(ctx context.Context) error {
	defer utilnet.CloseIdleConnectionsFor(e.connections.Transport)
	k, err := openKernel(e.options.Namespace)
	if err != nil {
		err = fmt.Errorf("network policy: %w", err)
		e.fail(err)
		return err
	}
	defer k.Close()
	e.kernel = k
	if r := e.options.Metrics; r != nil {
		if err := e.metrics.register(r); err != nil {
			return fmt.Errorf("network policy: %w", err)
		}
		defer e.metrics.unregister(r)
	}
	return e.follow(ctx)
}
