package proxy

import (
	"net"
	"net/netip"
	"slices"
)

// Machine is the machine around a network namespace that only routes for pods. It forwards packets for external
// addresses to the namespace. Since such an address may be the machine's own, it replaces the destination with the
// Service's stand-in, an address that is routed to the namespace and not used otherwise.
type Machine interface {
	// StandIns returns the ranges of stand-ins, at most one of each family. A returned range stays reserved for the
	// namespace.
	StandIns() ([]netip.Prefix, error)
	// Machines returns the addresses from which the machine itself sends to stand-ins.
	Machines() []netip.Addr
	// ServeAddresses sets the external addresses to forward packets for. The map has, by protocol number, the stand-in
	// of each address and port. The port is not translated. refused lists the entries that the machine, or another one,
	// uses itself.
	ServeAddresses(map[uint8]map[netip.AddrPort]netip.Addr) (refused []netip.AddrPort, err error)
}

// passage describes how the machine forwards packets, in one family.
type passage struct {
	standIns netip.Prefix   // zero if there are none
	services []netip.Prefix // the ranges of cluster IPs, in order
	sources  []netip.Addr   // the addresses from which the machine itself sends to stand-ins
	// addresses are all addresses that the machine itself sends from: sources, and the Nodes' addresses for node ports.
	addresses []netip.Prefix
}

// setSources sets the addresses that the machine itself sends from, given its Nodes' addresses, and reports a change.
func (p *passage) setSources(sources, nodes []netip.Addr) (changed bool) {
	changed = !slices.Equal(sources, p.sources)
	p.sources, p.addresses = sources, nil
	for _, a := range slices.Concat(sources, nodes) {
		p.addresses = append(p.addresses, netip.PrefixFrom(a, a.BitLen()))
	}
	p.addresses = distinct(p.addresses)
	return changed
}

// standIn returns the stand-in for a Service's external IPs or its load balancer's addresses, or the zero Addr. It is a
// function of the cluster IP, so it stays the same when the proxy restarts: its last bits are the cluster IP's, and the
// bit before is set for load balancers, which may have source ranges.
func (p *passage) standIn(clusterIP netip.Addr, balancer bool) netip.Addr {
	if !p.standIns.IsValid() || !p.distinguishes(clusterIP) {
		return netip.Addr{}
	}
	bits := p.standIns.Bits() + 1
	first := p.standIns.Addr().AsSlice()
	if balancer {
		first[(bits-1)/8] |= 1 << (7 - (bits-1)%8)
	}
	return joined(first, clusterIP, bits)
}

// distinguishes reports whether no other Service's cluster IP has the same last bits. If two ranges of cluster IPs
// overlap in these bits, only the first one has stand-ins.
func (p *passage) distinguishes(clusterIP netip.Addr) bool {
	bits := p.standIns.Bits() + 1
	zeros := make([]byte, clusterIP.BitLen()/8)
	image := func(r netip.Prefix) netip.Prefix {
		return netip.PrefixFrom(joined(zeros, r.Addr(), bits), r.Bits())
	}
	for i, r := range p.services {
		if !r.Contains(clusterIP) {
			continue
		}
		for _, before := range p.services[:i] {
			if image(before).Overlaps(image(r)) {
				return false
			}
		}
		return r.Bits() >= bits
	}
	return false
}

// joined returns an address with the first bits of one and the last bits of another.
func joined(first []byte, last netip.Addr, bits int) netip.Addr {
	b, mask := last.AsSlice(), net.CIDRMask(bits, last.BitLen())
	for i := range b {
		b[i] = first[i]&mask[i] | b[i]&^mask[i]
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// standIns returns the stand-ins for the external addresses of a port.
func (c *compiler) standIns(p *servicePort) (all []netip.Addr) {
	for _, group := range []struct {
		addresses []netip.Addr
		balancer  bool
	}{{p.externals, false}, {p.balancers, true}} {
		if len(group.addresses) > 0 {
			if a := c.machine.standIn(p.address, group.balancer); a.IsValid() {
				all = append(all, a)
			}
		}
	}
	return all
}

// served returns external addresses of one rank with their stand-in, and registers the addresses for forwarding to it.
func (p *portRules) served(addresses []netip.Addr, r rank) []netip.Addr {
	if len(addresses) == 0 {
		return nil
	}
	standIn := p.machine.standIn(p.port.address, r == rankBalancer)
	if !standIn.IsValid() {
		return addresses
	}
	if p.rules.forwarded == nil {
		p.rules.forwarded = &rules{elements: map[element]string{}, rank: map[element]rank{}}
	}
	forwarded := &portRules{rules: p.rules.forwarded}
	for _, a := range addresses {
		forwarded.put(serviceIPs, p.address(a, p.port.port), string(standIn.AsSlice()), r)
	}
	return append(addresses[:len(addresses):len(addresses)], standIn)
}
