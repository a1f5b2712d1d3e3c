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

// nodeDNS is the DNS server of an agent's pods. It listens at the router's own addresses and at no others, since egress
// policies decide about these only. The agent's Nodes report by a condition that it answers, and the controller
// clusterdns publishes it then.
type nodeDNS struct {
	router  *router.Router
	changed func() // called when the condition may be another one
	state   atomic.Pointer[dnsState]
}

// dnsState holds the addresses at which a server answers, or the error that has ended it.
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

// addresses returns the router's IPv4 addresses: one for each Node that has its subnet.
func (d *nodeDNS) addresses() []netip.Addr {
	return slices.DeleteFunc(d.router.Own(), netip.Addr.Is6)
}

// run answers pods until ctx ends. It starts again when the router gets another Node, with that Node's address as well.
func (d *nodeDNS) run(ctx context.Context, config *rest.Config, o dns.Options) error {
	for ctx.Err() == nil {
		if err := d.serve(ctx, config, o); err != nil {
			d.set(dnsState{problem: err})
			return err
		}
	}
	return nil
}

// serve answers at the router's addresses until it has others or ctx ends.
func (d *nodeDNS) serve(ctx context.Context, config *rest.Config, o dns.Options) (err error) {
	addresses := d.addresses()
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() {
		d.awaitOthers(ctx, addresses)
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

// awaitOthers returns when the router's addresses are others or ctx has ended.
func (d *nodeDNS) awaitOthers(ctx context.Context, addresses []netip.Addr) {
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

// condition returns what the agent's Nodes report of the server.
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
