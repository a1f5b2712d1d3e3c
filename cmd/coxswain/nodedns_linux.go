package main

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/network/dns"
	"github.com/coxswain-dev/coxswain/network/router"
)

// nodeDNS is the DNS server of an agent's pods. It listens only on the router's own addresses, since egress policies
// apply to these only. A condition of the agent's Nodes reports that the server answers. The controller clusterdns then
// publishes it.
type nodeDNS struct {
	router  *router.Router
	changed func() // called when the condition may have changed
	state   atomic.Pointer[dnsState]
}

// dnsState holds the addresses that a server answers on, or the error that it ended with.
type dnsState struct {
	addresses []netip.Addr
	problem   error
}

func newNodeDNS(r *router.Router, changed func()) *nodeDNS {
	d := &nodeDNS{router: r, changed: changed}
	d.state.Store(&dnsState{})
	return d
}

func (d *nodeDNS) set(s dnsState) {
	d.state.Store(&s)
	d.changed()
}

// addresses returns the router's IPv4 addresses: one for each Node that has a subnet.
func (d *nodeDNS) addresses() []netip.Addr {
	return slices.DeleteFunc(d.router.Own(), netip.Addr.Is6)
}

// run serves pods until ctx ends. When the router gets another Node, it restarts the server to listen on that Node's
// address as well.
func (d *nodeDNS) run(ctx context.Context, config *rest.Config, o dns.Options) error {
	for ctx.Err() == nil {
		if err := d.serve(ctx, config, o); err != nil {
			d.set(dnsState{problem: err})
			return err
		}
	}
	return nil
}

// serve serves on the router's addresses until they change or ctx ends.
func (d *nodeDNS) serve(ctx context.Context, config *rest.Config, o dns.Options) (err error) {
	addresses := d.addresses()
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() {
		d.awaitChange(ctx, addresses)
		cancel()
	})
	if len(addresses) == 0 {
		<-ctx.Done()
		return nil
	}
	listen := make([]string, len(addresses))
	for i, a := range addresses {
		listen[i] = netip.AddrPortFrom(a, 53).String()
	}
	if o.Sockets, err = dns.Listen(listen, d.router.Namespace()); err != nil {
		return err
	}
	o.Ready = func() { d.set(dnsState{addresses: addresses}) }
	return dns.Run(ctx, config, o)
}

// awaitChange returns when the router's addresses differ from the given ones, or when ctx ends.
func (d *nodeDNS) awaitChange(ctx context.Context, addresses []netip.Addr) {
	for {
		changed := d.router.Changed()
		if !slices.Equal(d.addresses(), addresses) {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// condition returns the condition of the agent's Nodes that reports the state of the server.
func (d *nodeDNS) condition() corev1.NodeCondition {
	c := corev1.NodeCondition{Type: "coxswain.dev/DNSReady", Status: corev1.ConditionFalse}
	s := d.state.Load()
	switch addresses := d.addresses(); {
	case s.problem != nil:
		c.Reason, c.Message = "DNSServerEnded", s.problem.Error()
	case len(addresses) == 0 || !slices.Equal(s.addresses, addresses):
		c.Reason, c.Message = "DNSServerStarting", "the DNS server does not know the cluster's names yet"
	default:
		c.Status, c.Reason = corev1.ConditionTrue, "DNSServerReady"
		c.Message = "the DNS server answers pods of this node"
	}
	return c
}

// Conditions implements runtime.Router.
func (r protectedRouter) Conditions() []corev1.NodeCondition {
	if r.dns == nil {
		return nil
	}
	return []corev1.NodeCondition{r.dns.condition()}
}
