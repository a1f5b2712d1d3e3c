package proxy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// maxForwards limits the external addresses and ports that the machine forwards. Load balancers come before external
// IPs, and older Services before younger ones.
const maxForwards = 1 << 16

// apiServers is the Service with the API servers as its endpoints.
var apiServers = types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: "kubernetes"}

// forwarding is the state of packets that the machine forwards.
type forwarding struct {
	machine   Machine                       // nil without a machine
	addresses [families]*state              // stand-ins by external address, protocol and port
	exposed   map[types.NamespacedName]bool // Services with external addresses

	joined   bool // the ranges of stand-ins are known
	outdated bool // the exposed Services must be updated
	dirty    bool // the machine is not up to date
}

// replace replaces a Service's forwarded addresses.
func (o *forwarding) replace(f family, old, now *service) {
	before, after := old.forwarded(f), now.forwarded(f)
	if before != nil || after != nil {
		o.addresses[f].succeed(&old.owner, &now.owner, before, after)
	}
}

// forwarded returns the addresses that the machine forwards for a Service, or nil.
func (s *service) forwarded(f family) *rules {
	if s.rules[f] == nil {
		return nil
	}
	return s.rules[f].forwarded
}

// sources returns the addresses from which the machine itself sends.
func (o *forwarding) sources(f family) []netip.Addr {
	return slices.DeleteFunc(o.machine.Machines(), func(a netip.Addr) bool { return !f.has(a) })
}

// joinMachine reads the ranges of stand-ins from the machine, if a Service has external addresses.
func (b *ruleset) joinMachine() error {
	o := &b.forwarding
	if o.machine == nil || o.joined || len(o.exposed) == 0 {
		return nil
	}
	ranges, err := o.machine.StandIns()
	if err != nil {
		return fmt.Errorf("get stand-ins of the machine: %w", err)
	}
	o.joined = true
	for f := range families {
		var standIns netip.Prefix
		for _, r := range ranges {
			if f.has(r.Addr()) {
				standIns = r
			}
		}
		if c := &b.compilers[f]; standIns != c.machine.standIns {
			c.machine.standIns, o.outdated = standIns, true
		}
	}
	return nil
}

// reserve reserves the addresses of the API servers, which are the endpoints in slices. Without endpoints, the previous
// ones stay reserved.
func (b *ruleset) reserve(all []*discoveryv1.EndpointSlice) {
	reserved := map[netip.AddrPort]bool{}
	for _, s := range all {
		for _, p := range s.Ports {
			if p.Port == nil || p.Protocol != nil && *p.Protocol != corev1.ProtocolTCP {
				continue
			}
			for _, e := range s.Endpoints {
				for _, text := range e.Addresses {
					if a, ok := parseAddress(text); ok {
						reserved[netip.AddrPortFrom(a, uint16(*p.Port))] = true
					}
				}
			}
		}
	}
	if len(reserved) > 0 {
		b.setReserved(reserved)
	}
}

func (b *ruleset) setReserved(reserved map[netip.AddrPort]bool) {
	for _, a := range b.reserved {
		reserved[a] = true
	}
	if maps.Equal(reserved, b.compilers[ipv4].reserved) {
		return
	}
	for f := range families {
		b.compilers[f].reserved = reserved
	}
	b.forwarding.outdated = true
}

// takeOutdated returns the Services that must be updated although they did not change.
func (b *ruleset) takeOutdated() (names []types.NamespacedName) {
	if b.forwarding.outdated {
		b.forwarding.outdated = false
		names = slices.Collect(maps.Keys(b.forwarding.exposed))
	}
	return names
}

// serveMachine updates the machine's forwarding, if it changed. It returns the refused addresses, and whether the
// machine was called.
func (b *ruleset) serveMachine() (refused []netip.AddrPort, called bool, err error) {
	o := &b.forwarding
	for _, s := range o.addresses {
		o.dirty = o.dirty || len(s.dirty.elements) > 0
	}
	if o.machine == nil || !o.dirty {
		return nil, false, nil
	}
	if refused, err = o.machine.ServeAddresses(b.forwards()); err != nil {
		return nil, false, fmt.Errorf("serve external addresses on the machine: %w", err)
	}
	for _, s := range o.addresses {
		s.clean()
	}
	o.dirty = false
	return refused, true, nil
}

// forwards returns the addresses to forward, by protocol number. Cluster IPs are left out: they have their own routes.
func (b *ruleset) forwards() map[uint8]map[netip.AddrPort]netip.Addr {
	type address struct {
		key string
		claim
	}
	all := map[uint8]map[netip.AddrPort]netip.Addr{}
	room := maxForwards
	for f := range families {
		var addresses []address
		for e, c := range b.forwarding.addresses[f].elements {
			addresses = append(addresses, address{e.key, c})
		}
		if len(addresses) > room {
			slices.SortFunc(addresses, func(a, b address) int { return a.before(b.claim) })
			addresses = addresses[:room]
		}
		room -= len(addresses)
		for _, a := range addresses {
			target, protocol := parse(a.key)
			_, cluster := b.tables[f].state.elements[element{clusterIPs, string(target.Addr().AsSlice())}]
			if cluster || contained(b.tables[f].policy.serviceCIDRs, target.Addr()) {
				continue
			}
			if all[protocol] == nil {
				all[protocol] = map[netip.AddrPort]netip.Addr{}
			}
			all[protocol][target], _ = netip.AddrFromSlice([]byte(a.value))
		}
	}
	return all
}
