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
//	protect.go       a pod starts when its policies are in the kernel
//	recheck.go       connections that policies no longer allow end    (flow.go: what the rules say to a flow)
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
	// Served, if not nil, returns addresses of the network namespace itself that pods reach only if their egress
	// policies allow it, such as that of the cluster's DNS server. It is called often, and must be quick.
	Served func() []netip.Addr
	// Changed, if not nil, is called when Problem may return something else.
	Changed func()
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

// Run enforces the cluster's policies until ctx ends, and then returns nil: New and Enforcer.Run in one.
func Run(ctx context.Context, config *rest.Config, o Options) error {
	e, err := New(config, o)
	if err != nil {
		return err
	}
	return e.Run(ctx)
}

// New returns an enforcer, which does nothing before Run. It fails if the options are wrong.
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
		return nil, fmt.Errorf("network policy: client: %w", err)
	}
	if e.client, err = kubernetes.NewForConfigAndClient(config, e.connections); err != nil {
		return nil, fmt.Errorf("network policy: client: %w", err)
	}
	return e, nil
}

// Run enforces policies until ctx ends, and then returns nil. It is called once. The rules stay in the kernel, so that
// nothing opens while an enforcer is started again; Cleanup removes them. Run returns early, with an error, if the
// machine has no nftables.
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
