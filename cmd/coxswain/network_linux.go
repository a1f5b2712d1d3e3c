package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/cmd/coxswain/listener"
	"github.com/coxswain-dev/coxswain/network/dns"
	"github.com/coxswain-dev/coxswain/network/policy"
	"github.com/coxswain-dev/coxswain/network/proxy"
	"github.com/coxswain-dev/coxswain/network/router"
	"github.com/coxswain-dev/coxswain/network/routing"
	"github.com/coxswain-dev/coxswain/node"
	"github.com/coxswain-dev/coxswain/node/runtime"
)

// podNetwork is the network of a machine's pods, with the parts that run in this process.
type podNetwork struct {
	networkFlags
	nodes   []string
	address netip.Addr // the machine's
	mtu     int
	config  *rest.Config // client configuration of the parts
	domain  string       // domain of the cluster's names

	machine  func(context.Context, netip.Addr) error // as in nodeFlags
	endpoint net.Listener                            // as in nodeFlags

	dir    string               // the agent's folder
	opened chan protectedRouter // receives the router once the agent has opened it
}

// protectedRouter is a router with NetworkPolicies and a DNS server for its pods. Both are optional.
type protectedRouter struct {
	*router.Router
	policies *policy.Enforcer // nil if this process does not enforce policies
	dns      *nodeDNS         // nil if this process runs no DNS server
}

// Protect implements runtime.Router.
func (r protectedRouter) Protect(ctx context.Context, pod *corev1.Pod, addresses ...netip.Addr) error {
	if r.policies == nil {
		return nil
	}
	return r.policies.Protect(ctx, pod, addresses...)
}

// Problem implements runtime.Router.
func (r protectedRouter) Problem() error {
	if r.policies == nil {
		return nil
	}
	return r.policies.Problem()
}

// newPodNetwork returns the network that the flags describe, for Nodes on a machine with the given address.
func newPodNetwork(f networkFlags, as identities, nodes []string, address string) (*podNetwork, error) {
	n := &podNetwork{networkFlags: f, nodes: nodes}
	var err error
	if n.config, err = f.identity(as); err != nil {
		return nil, err
	}
	if n.address, err = netip.ParseAddr(address); err != nil && n.mode != noPeers {
		return nil, fmt.Errorf("--network-mode %s: --node-ip: %w", n.mode, err)
	}
	if n.mode != noPeers {
		if n.mtu, err = router.MTU(n.mode, n.address); err != nil {
			return nil, fmt.Errorf("--network-mode %s: %w", n.mode, err)
		}
	}
	return n, nil
}

// startNetwork sets the agent's option that opens its network, and starts the network's parts once the network is open.
// They stop when ctx ends; wait returns when all have stopped.
func (f *nodeFlags) startNetwork(ctx context.Context, as identities, o *node.Options) (wait func(), err error) {
	if f.runtime != node.Process {
		return func() {}, nil
	}
	n, err := newPodNetwork(f.network, as, f.names(), f.address)
	if err != nil {
		return nil, err
	}
	n.machine, n.endpoint = f.machine, f.endpoint
	n.dir, n.opened, n.domain = f.dir, make(chan protectedRouter, 1), f.clusterDomain
	n.dns = n.dns && len(f.clusterDNS) > 0
	o.OpenRouter = n.open
	var running sync.WaitGroup
	running.Go(func() {
		select {
		case r := <-n.opened:
			n.run(ctx, r)
		case <-ctx.Done():
		}
	})
	return running.Wait, nil
}

// open opens the router of an agent.
func (n *podNetwork) open(namespace *os.File, changed func()) (runtime.Router, error) {
	r, err := n.openRouter(namespace)
	if err != nil {
		return nil, err
	}
	err = n.publish(r)
	protected := protectedRouter{Router: r}
	if err == nil {
		protected, err = n.protect(r, changed)
	}
	if err != nil {
		r.Close()
		return nil, err
	}
	if n.dns {
		protected.dns = newNodeDNS(r, changed)
	}
	n.opened <- protected
	return protected, nil
}

// protect adds NetworkPolicies to a router, if this process enforces them.
func (n *podNetwork) protect(r *router.Router, changed func()) (protectedRouter, error) {
	if !n.proxy {
		return protectedRouter{Router: r}, nil
	}
	e, err := policy.New(n.config, policy.Options{Namespace: r.Namespace(), Nodes: n.nodes, NodeAddresses: r.Machines,
		Served: r.Own, Changed: changed})
	return protectedRouter{Router: r, policies: e}, err
}

func (n *podNetwork) openRouter(namespace *os.File) (*router.Router, error) {
	r, err := router.Open(namespace, router.Options{MTU: n.mtu})
	if err != nil {
		return nil, err
	}
	if n.masquerade {
		if err := r.Masquerade(); err != nil {
			r.Close()
			return nil, err
		}
	}
	if n.nodePorts.Size > 0 {
		first := uint16(n.nodePorts.Base)
		if err := r.ServeNodePorts(router.Ports{First: first, Last: first + uint16(n.nodePorts.Size-1)}); err != nil {
			r.Close()
			return nil, err
		}
	}
	return r, nil
}

// namespaceFile is a link in an agent's folder to the network namespace of its pods' router. Other processes use it
// while the agent runs.
const namespaceFile = "netns"

func (n *podNetwork) publish(r *router.Router) error {
	link := filepath.Join(n.dir, namespaceFile)
	if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.Symlink(fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), r.Namespace().Fd()), link)
}

// run runs the parts until ctx ends. If one fails, the others and the agent continue.
func (n *podNetwork) run(ctx context.Context, p protectedRouter) {
	r := p.Router
	var running sync.WaitGroup
	part := func(name string, run func() error) {
		running.Go(func() {
			if err := run(); err != nil && ctx.Err() == nil {
				slog.Error("failed to run a part of the network", "part", name, "err", err)
			}
		})
	}
	part("routing", func() error {
		o := routing.Options{Router: r, Nodes: n.nodes, Address: n.address, Balancers: n.balancers,
			NodePorts: n.nodePorts.Size == 0 && n.proxy}
		if n.mode != noPeers {
			o.Mode = n.mode
		}
		return routing.Run(ctx, n.config, o)
	})
	part("forwarding", func() error { return keepForwarding(ctx, r) })
	part("machine", func() error { return n.followMachine(ctx, r) })
	if n.proxy {
		part("proxy", func() error { return n.runProxy(ctx, r) })
	}
	if p.policies != nil {
		part("policy", func() error {
			if !hasNode(ctx, r) {
				return nil
			}
			return p.policies.Run(ctx)
		})
	}
	if p.dns != nil {
		part("dns", func() error { return p.dns.run(ctx, n.config, dns.Options{Domain: n.domain}) })
	}
	running.Wait()
}

// followMachine lets pods reach the agent's endpoint, and calls machine with the first address of the machine in the
// network of its pods, now and whenever a Node is added, until ctx ends.
func (n *podNetwork) followMachine(ctx context.Context, r *router.Router) error {
	for {
		changed := r.Changed()
		all := r.Machines()
		if n.endpoint != nil {
			if err := listener.Admit(n.endpoint, all...); err != nil {
				slog.Error("cannot serve the agent to its pods", "err", err)
			}
		}
		if n.machine != nil && len(all) > 0 {
			if err := n.machine(ctx, all[0]); err != nil {
				slog.Error("cannot serve the Service kubernetes to pods", "err", err)
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// forwardingPeriod is the time between two checks of the machine's other packet filters.
const forwardingPeriod = time.Minute

// keepForwarding adds rules for pods to the machine's other packet filters when they start to drop forwarded packets,
// until ctx ends.
func keepForwarding(ctx context.Context, r *router.Router) error {
	ticker := time.NewTicker(forwardingPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			if err := r.AcceptForwarded(); err != nil {
				slog.Warn("failed to make other packet filters accept forwarded packets of pods", "err", err)
			}
		}
	}
}

// runProxy serves Services once there is a Node: its veth pair connects the machine and the router. Packets to node
// ports of the machine arrive at the router's own address, and packets to external addresses at stand-ins for them.
func (n *podNetwork) runProxy(ctx context.Context, r *router.Router) error {
	if !hasNode(ctx, r) {
		return nil
	}
	return proxy.Run(ctx, n.config, proxy.Options{
		Namespace: r.Namespace(), Nodes: n.nodes, Machine: r, Reserved: serverOf(n.config),
		NodePortAddresses: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")},
	})
}

// serverOf returns the address and port of the API server in a client configuration, or nil if its host is a name. The
// address is not always an endpoint of the Service kubernetes: it can be a load balancer's.
func serverOf(config *rest.Config) []netip.AddrPort {
	u, err := url.Parse(config.Host)
	if err != nil {
		return nil
	}
	server, err := netip.ParseAddrPort(net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "443")))
	if err != nil {
		return nil
	}
	return []netip.AddrPort{netip.AddrPortFrom(server.Addr().Unmap(), server.Port())}
}

// hasNode waits until the router has a Node. It returns false if ctx ends before that.
func hasNode(ctx context.Context, r *router.Router) bool {
	for {
		changed := r.Changed()
		if len(r.Own()) > 0 {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}
