package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/coxswain-dev/coxswain/internal/backoff"
	"github.com/coxswain-dev/coxswain/internal/clock/virtualtime"
	"github.com/coxswain-dev/coxswain/network/netns"
)

// Pauses after failed commits.
const (
	firstPause   = time.Second
	longestPause = 30 * time.Second
)

// Run programs Services until ctx ends, and returns nil when all its goroutines have ended. The rules stay in the
// kernel. It returns early if the options are invalid or the namespace has no nftables.
func Run(ctx context.Context, config *rest.Config, o Options) error {
	if err := o.complete(); err != nil {
		return fmt.Errorf("proxy: %w", err)
	}
	config = rest.CopyConfig(config)
	if config.UserAgent == "" {
		config.UserAgent = "coxswain-proxy"
	}
	connections, err := rest.HTTPClientFor(config)
	if err != nil {
		return fmt.Errorf("proxy: create client: %w", err)
	}
	defer utilnet.CloseIdleConnectionsFor(connections.Transport)
	client, err := kubernetes.NewForConfigAndClient(config, connections)
	if err != nil {
		return fmt.Errorf("proxy: create client: %w", err)
	}
	if err := run(ctx, client, o); err != nil {
		return fmt.Errorf("proxy: %w", err)
	}
	return nil
}

func run(ctx context.Context, client kubernetes.Interface, o Options) error {
	rules, err := openRuleset(o.Namespace, o.Machine)
	if err != nil {
		return err
	}
	defer rules.close()
	rules.reserved = o.Reserved
	rules.setReserved(map[netip.AddrPort]bool{})
	p := &proxy{options: o, rules: rules, metrics: newMetrics(o.Health)}
	p.source = newSource(client, o.Nodes, o.Log, p.queued)
	p.checks = &healthChecks{namespace: o.Namespace, healthy: o.Health.Healthy, log: o.Log,
		open: map[types.NamespacedName]*healthCheck{}, failed: map[types.NamespacedName]uint16{}}
	defer p.checks.close()
	if o.Metrics != nil {
		if err := p.metrics.register(o.Metrics); err != nil {
			return err
		}
		defer p.metrics.unregister(o.Metrics)
	}
	ctx, cancel := context.WithCancel(ctx)
	stop, err := p.source.start(ctx)
	if err != nil {
		cancel()
		return fmt.Errorf("start informers: %w", err)
	}
	defer stop()
	defer cancel()
	if cache.WaitFor(ctx, "", p.source.synced...) {
		p.serve(ctx)
	}
	return nil
}

// proxy is a running proxy. Only the goroutine that called Run may use its methods, except queued.
type proxy struct {
	options Options
	source  *source
	rules   *ruleset
	checks  *healthChecks
	metrics *metrics
	begun   bool             // all tables have been committed once
	refused []netip.AddrPort // external addresses that the machine refused
	again   <-chan time.Time // when to retry the machine's forwarding; nil if it did not fail

	triggers [families][]time.Time // times of changes that are not committed
}

// queued records a change that the kernel does not have yet.
func (p *proxy) queued() {
	p.options.Health.queued()
	now := float64(p.options.Clock.Now().UnixNano()) / 1e9
	for f := range families {
		p.metrics.queued.WithLabelValues(f.String()).Set(now)
	}
}

// serve commits changes at most once per MinSyncPeriod. It does a full sync every SyncPeriod and after failures.
func (p *proxy) serve(ctx context.Context) {
	c := p.options.Clock
	whole := c.NewTicker(p.options.SyncPeriod)
	defer whole.Stop()
	first := p.source.take()
	first.nodes = true
	p.take(first)
	p.source.awake()
	for pause := backoff.Doubling(firstPause, longestPause); ; {
		select {
		case <-ctx.Done():
			return
		case <-whole.C():
			p.rules.forceFullSync()
			p.take(changes{nodes: true}) // addresses of devices may have changed
		case <-p.source.wake:
		case <-p.again:
		}
		p.take(p.source.take())
		wait := p.options.MinSyncPeriod
		if err := p.commit(); err == nil {
			pause = backoff.Doubling(firstPause, longestPause)
		} else {
			p.options.Log.Warn("failed to sync proxy rules", "err", err)
			p.source.awake()
			wait = pause.Step()
		}
		if !virtualtime.Wait(ctx, c, wait) {
			return
		}
	}
}

// take updates the rules of changed Services, or of all Services if the topology changed.
func (p *proxy) take(c changes) {
	p.metrics.endpointChanges.Add(float64(c.endpoints))
	p.metrics.serviceChanges.Add(float64(c.objects))
	p.metrics.endpointsPending.Set(float64(c.endpoints))
	p.metrics.servicesPending.Set(float64(c.objects))
	for f, times := range c.triggers {
		p.triggers[f] = append(p.triggers[f], times...)
	}
	if !c.nodes || !p.takeNodes() {
		for name := range c.services {
			p.takeService(name)
		}
		return
	}
	all, _ := p.source.services.List(labels.Everything()) // listing from the cache cannot fail
	for _, s := range all {
		name := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
		delete(c.services, name)
		p.takeService(name)
	}
	for name := range c.services { // the deleted ones
		p.takeService(name)
	}
}

func (p *proxy) takeService(name types.NamespacedName) {
	s, err := p.source.services.Services(name.Namespace).Get(name.Name)
	if apierrors.IsNotFound(err) {
		s = nil
	}
	p.rules.update(name, s, p.source.slicesOf(name))
	port, local := p.rules.health(name)
	p.checks.set(name, port, local)
}

// takeNodes reads the Nodes and ServiceCIDRs, and reports whether all Services must be updated.
func (p *proxy) takeNodes() (changed bool) {
	topology := topology{nodes: map[string]bool{}, zones: map[string]bool{}}
	var nodes []*corev1.Node
	for _, name := range p.options.Nodes {
		topology.nodes[name] = true
		n, err := p.source.nodes.Get(name)
		if err != nil {
			continue // it does not exist yet
		}
		nodes = append(nodes, n)
		if zone := n.Labels[corev1.LabelTopologyZone]; zone != "" {
			topology.zones[zone] = true
		}
	}
	topology.pods = p.podsOf(nodes)
	p.options.Health.setNodes(nodes)
	nodePorts, all := nodeAddresses(nodes, p.options.NodePortAddresses, p.deviceAddresses)
	cidrs := p.serviceCIDRs()
	for f := range families {
		settings := policy{masqueradeAll: p.options.MasqueradeAll}
		for _, r := range p.options.ClusterCIDRs {
			if f.has(r.Addr()) {
				settings.clusterCIDR = r.Masked()
			}
		}
		for _, r := range cidrs {
			if f.has(r.Addr()) {
				settings.serviceCIDRs = append(settings.serviceCIDRs, r)
			}
		}
		p.rules.setPolicy(f, settings)
	}
	return p.rules.setNodes(topology, nodePorts, all)
}

// podsOf returns the ranges of the Nodes' pods, except ranges of a family with a cluster CIDR.
func (p *proxy) podsOf(nodes []*corev1.Node) (all []netip.Prefix) {
	for _, n := range nodes {
		for _, text := range n.Spec.PodCIDRs {
			r, err := netip.ParsePrefix(text)
			if err == nil && !slices.ContainsFunc(p.options.ClusterCIDRs,
				func(c netip.Prefix) bool { return c.Addr().Is4() == r.Addr().Is4() }) {
				all = append(all, r.Masked())
			}
		}
	}
	return distinct(all)
}

// deviceAddresses returns the addresses of the namespace's devices.
func (p *proxy) deviceAddresses() []netip.Addr {
	var all []netip.Addr
	err := netns.Do(p.options.Namespace, func() error {
		found, err := net.InterfaceAddrs()
		for _, a := range found {
			if n, ok := a.(*net.IPNet); ok {
				if ip, ok := netip.AddrFromSlice(n.IP); ok {
					all = append(all, ip.Unmap())
				}
			}
		}
		return err
	})
	if err != nil {
		p.options.Log.Warn("failed to list addresses of devices for node ports", "err", err)
	}
	return all
}

func (p *proxy) serviceCIDRs() []netip.Prefix {
	objects, _ := p.source.cidrs.List(labels.Everything()) // listing from the cache cannot fail
	var all []netip.Prefix
	for _, o := range objects {
		for _, text := range o.Spec.CIDRs {
			if r, err := netip.ParsePrefix(text); err == nil {
				all = append(all, r.Masked())
			}
		}
	}
	return distinct(all)
}

// commit commits both tables, cleans up after them, and updates the machine's forwarding.
func (p *proxy) commit() error {
	machine := p.rules.joinMachine()
	for _, name := range p.rules.takeOutdated() {
		p.takeService(name)
	}
	var failed error
	for f := range families {
		if err := p.commitTable(f); err != nil {
			p.metrics.failures.WithLabelValues(f.String()).Inc()
			failed = errors.Join(failed, err)
		}
	}
	inside, outside := p.rules.withoutLocal()
	p.metrics.noLocal.WithLabelValues("internal").Set(float64(inside))
	p.metrics.noLocal.WithLabelValues("external").Set(float64(outside))
	p.metrics.endpointsPending.Set(0)
	p.metrics.servicesPending.Set(0)
	if failed != nil {
		return failed
	}
	p.options.Health.committed()
	if !p.begun && p.options.Ready != nil {
		p.options.Ready()
	}
	p.begun = true
	p.serveMachine(machine)
	return nil
}

// serveMachine makes the machine forward packets for external addresses, after the tables have their stand-ins. It
// retries later if that fails, or if joinErr, the error of joinMachine, is not nil. Services stay as they are
// meanwhile.
func (p *proxy) serveMachine(joinErr error) {
	refused, called, err := p.rules.serveMachine()
	p.again = nil
	if err = errors.Join(joinErr, err); err != nil {
		p.options.Log.Warn("failed to serve external addresses on the machine", "err", err)
		p.again = p.options.Clock.After(longestPause)
	}
	slices.SortFunc(refused, netip.AddrPort.Compare)
	if called && !slices.Equal(refused, p.refused) {
		p.options.Log.Info("serving external addresses to pods only: this machine or another one uses them",
			"count", len(refused), "first", refused[:min(len(refused), 10)])
		p.refused = refused
	}
}

func (p *proxy) commitTable(f family) error {
	c := p.options.Clock
	start, whole := c.Now(), !p.rules.tables[f].synced
	if err := p.rules.commit(f); err != nil {
		return err
	}
	now := c.Now()
	p.metrics.committed(f, whole, now.Sub(start), now)
	for _, trigger := range p.triggers[f] {
		p.metrics.programming.WithLabelValues(f.String()).Observe(now.Sub(trigger).Seconds())
	}
	p.triggers[f] = nil
	if !p.rules.needsCleanup(f) {
		return nil
	}
	deleted, err := p.rules.cleanUpConntrack(f)
	p.metrics.flowsDuration.WithLabelValues(f.String()).Observe(c.Since(now).Seconds())
	p.metrics.flowsDeleted.WithLabelValues(f.String()).Add(float64(deleted))
	return err
}
