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

// maxForwards bounds the external addresses and ports that the machine passes on. Load balancers go before external
// IPs, and older Services before younger ones.
const maxForwards = 1 << 16

// apiServers is the Service that has the API servers as its endpoints.
var apiServers = types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: "kubernetes"}

// forwarding is what the machine passes on.
type forwarding struct {
	machine   Machine                       // nil where none does
	addresses [families]*state              // by external address, protocol and port: the stand-in
	exposed   map[types.NamespacedName]bool // Services with external addresses

	joined   bool // the ranges of stand-ins are known
	outdated bool // the exposed Services have to be updated
	dirty    bool // the machine does not have it all
}

// replace replaces what the machine passes on for a Service.
func (o *forwarding) replace(f family, old, now *service) {
	before, after := old.forwarded(f), now.forwarded(f)
	if before != nil || after != nil {
		o.addresses[f].succeed(&old.owner, &now.owner, before, after)
	}
}

// forwarded returns what the machine is to pass on for a Service; nil for nothing.
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
func (b *rulebook) joinMachine() error {
	o := &b.forwarding
	if o.machine == nil || o.joined || len(o.exposed) == 0 {
		return nil
	}
	ranges, err := o.machine.StandIns()
	if err != nil {
		return fmt.Errorf("external addresses on the machine: %w", err)
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

// reserve keeps external addresses away from the API servers, the endpoints in slices. While there is none, those
// before count.
func (b *rulebook) reserve(all []*discoveryv1.EndpointSlice) {
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

func (b *rulebook) setReserved(reserved map[netip.AddrPort]bool) {
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

// takeOutdated returns the Services that have to be updated although they did not change.
func (b *rulebook) takeOutdated() (names []types.NamespacedName) {
	if b.forwarding.outdated {
		b.forwarding.outdated = false
		names = slices.Collect(maps.Keys(b.forwarding.exposed))
	}
	return names
}

// serveMachine has the machine pass on what it is to, if that changed. It returns what the machine refuses, and whether
// that was asked.
func (b *rulebook) serveMachine() (refused []netip.AddrPort, asked bool, err error) {
	o := &b.forwarding
	for _, s := range o.addresses {
		o.dirty = o.dirty || len(s.dirty.elements) > 0
	}
	if o.machine == nil || !o.dirty {
		return nil, false, nil
	}
	if refused, err = o.machine.ServeAddresses(b.forwards()); err != nil {
		return nil, false, fmt.Errorf("external addresses on the machine: %w", err)
	}
	for _, s := range o.addresses {
		s.clean()
	}
	o.dirty = false
	return refused, true, nil
}

// forwards returns what the machine is to pass on, by the protocol's number. Cluster IPs have routes of their own.
func (b *rulebook) forwards() map[uint8]map[netip.AddrPort]netip.Addr {
	type address struct {
		key string
		claim
	}
	all := map[uint8]map[netip.AddrPort]netip.Addr{}
	left := maxForwards
	for f := range families {
		var addresses []address
		for e, c := range b.forwarding.addresses[f].elements {
			addresses = append(addresses, address{e.key, c})
		}
		if len(addresses) > left {
			slices.SortFunc(addresses, func(a, b address) int { return a.before(b.claim) })
			addresses = addresses[:left]
		}
		left -= len(addresses)
		for _, a := range addresses {
			at, protocol := parse(a.key)
			_, cluster := b.tables[f].state.elements[element{clusterIPs, string(at.Addr().AsSlice())}]
			if cluster || contained(b.tables[f].policy.serviceCIDRs, at.Addr()) {
				continue
			}
			if all[protocol] == nil {
				all[protocol] = map[netip.AddrPort]netip.Addr{}
			}
			all[protocol][at], _ = netip.AddrFromSlice([]byte(a.value))
		}
	}
	return all
}
