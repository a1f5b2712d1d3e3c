package proxy

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// compiler makes the rules of Services in one family.
type compiler struct {
	family family
	// nodeSources are the addresses of our Nodes, which may reach a load balancer's address if its ranges have one.
	nodeSources []netip.Addr
	// pods are the ranges of our Nodes' pods, which reach all endpoints even where the policy is Local. None where
	// policy.clusterCIDR has them.
	pods []netip.Prefix
	// reserved are the addresses and ports of API servers, which no external address takes over.
	reserved map[netip.AddrPort]bool
	// machine is how the machine around the namespace passes packets on; zero where it does not.
	machine passage
}

// ports are the rules of all ports of a Service, with the endpoints that each uses.
func (c *compiler) ports(ports []servicePort, of []backends) *rules {
	r := &rules{elements: map[element]string{}, chains: map[string]chain{}, affinity: map[string][]netip.AddrPort{},
		sources: map[string][]netip.Prefix{},
		rank:    map[element]rank{}}
	for i := range ports {
		(&portRules{rules: r, port: &ports[i], ends: &of[i], compiler: c}).add()
	}
	return r
}

// portRules adds the rules of one port.
type portRules struct {
	*rules
	*compiler
	port *servicePort
	ends *backends
}

func (p *portRules) add() {
	own := p.address(p.port.address, p.port.port)
	p.put(clusterIPs, string(p.port.address.AsSlice()), "", 0)
	p.pool(own, false)
	p.pool(own, true)
	for _, a := range p.ends.hairpin {
		p.put(hairpins, strings.Repeat(string(a.AsSlice()), 2), "", 0)
	}
	if n := p.count(p.port.internalLocal); n > 0 {
		p.put(serviceIPs, own, p.inside(p.port.internalLocal), rankOwn)
	} else {
		p.put(noEndpointServices, own, p.refusal(), rankOwn)
	}
	if p.port.external() {
		p.addExternal()
	}
}

// pool numbers the endpoints of a policy.
func (p *portRules) pool(own string, local bool) {
	for i, e := range p.chosen(local) {
		key := binary.NativeEndian.AppendUint32([]byte(own), base(local)+uint32(i))
		value := fields(e.Addr().AsSlice(), binary.BigEndian.AppendUint16(nil, e.Port()))
		p.put(endpoints, string(key), value, 0)
	}
}

// addExternal adds what leads from external addresses and node ports to the endpoints. The machine sends packets for
// the addresses to stand-ins for them.
func (p *portRules) addExternal() {
	open := p.ends.exists && p.count(p.port.externalLocal) > 0
	target := ""
	if len(p.ends.cluster) > 0 {
		target = p.outside()
	}
	put := func(to, none set, key string, r rank) {
		if target != "" {
			p.put(to, key, target, r)
		}
		if !open {
			p.put(none, key, p.refusal(), r)
		}
	}
	balancers, externals := p.unreserved(p.port.balancers), p.unreserved(p.port.externals)
	allowed := p.restrict(balancers)
	for _, a := range p.served(balancers, rankBalancer) {
		key := p.address(a, p.port.port)
		put(serviceIPs, noEndpointServices, key, rankBalancer)
		if allowed != "" {
			p.put(firewallIPs, key, allowed, rankBalancer)
		}
	}
	for _, a := range p.served(externals, rankExternalIP) {
		put(serviceIPs, noEndpointServices, p.address(a, p.port.port), rankExternalIP)
	}
	if p.port.nodePort != 0 {
		key := fields([]byte{protocols[p.port.protocol]}, binary.BigEndian.AppendUint16(nil, p.port.nodePort))
		put(serviceNodePorts, noEndpointNodePorts, key, rankOwn)
	}
}

// unreserved returns the external addresses without those that are an API server's at this port.
func (p *portRules) unreserved(addresses []netip.Addr) []netip.Addr {
	if p.port.protocol != corev1.ProtocolTCP || len(p.reserved) == 0 {
		return addresses
	}
	return slices.DeleteFunc(slices.Clone(addresses), func(a netip.Addr) bool {
		return p.reserved[netip.AddrPortFrom(a, p.port.port)]
	})
}

// restrict returns the chain that lets only loadBalancerSourceRanges reach the load balancer's addresses; "" where all
// sources may. Where the ranges have an address of a Node, the Node may use a balancer's address as its own source, as
// it does if the address is on one of its devices, and the one from which the machine comes.
func (p *portRules) restrict(balancers []netip.Addr) (name string) {
	if !p.port.restricted || len(balancers) == 0 {
		return ""
	}
	ranges := p.port.sources
	if slices.ContainsFunc(p.nodeSources, func(a netip.Addr) bool { return contained(ranges, a) }) {
		ranges = slices.Clone(ranges)
		for _, a := range append(slices.Clone(balancers), p.machine.sources...) {
			ranges = append(ranges, netip.PrefixFrom(a, a.BitLen()))
		}
		ranges = distinct(ranges)
	}
	name = p.chainName("firewall-")
	p.chains[name] = chain{kind: firewall, sources: p.setOf(ranges)}
	return name
}

// setOf returns the name of the set of some ranges, which all Services with the same ranges share.
func (p *portRules) setOf(ranges []netip.Prefix) string {
	set := "sources-" + hash(fmt.Sprint(ranges))
	p.sources[set] = ranges
	return set
}

func contained(ranges []netip.Prefix, a netip.Addr) bool {
	for _, r := range ranges {
		if r.Contains(a) {
			return true
		}
	}
	return false
}

// refusal is for packets that no endpoint is there for: reject if there is none in the cluster, drop if there is one
// elsewhere, as a load balancer may then try another Node.
func (p *portRules) refusal() string {
	if p.ends.exists {
		return verdictDrop
	}
	return verdictReject
}

// chosen are the endpoints of a policy.
func (p *portRules) chosen(local bool) []netip.AddrPort {
	if local {
		return p.ends.local
	}
	return p.ends.cluster
}

func (p *portRules) count(local bool) int { return len(p.chosen(local)) }

// inside is the chain that chooses endpoints for packets to the cluster IP. Without affinity it is one that all
// Services with as many endpoints share.
func (p *portRules) inside(local bool) string {
	if p.port.affinity > 0 {
		return p.own(local)
	}
	name := fmt.Sprintf("pick-%d", p.count(local))
	if local {
		name = "pick-local-" + name[len("pick-"):]
	}
	p.chains[name] = chain{kind: choosing, count: p.count(local), local: local}
	return name
}

// own is the chain that chooses among the endpoints of this port, whatever the packet's destination.
func (p *portRules) own(local bool) string {
	prefix := "service-"
	if local {
		prefix = "local-"
	}
	name := p.chainName(prefix)
	c := chain{kind: choosing, count: p.count(local), local: local, address: p.port.address,
		protocol: protocols[p.port.protocol], port: p.port.port}
	if p.port.affinity > 0 {
		c.affinity, c.timeout = p.chainName("affinity-"+prefix), p.port.affinity
		p.affinity[c.affinity] = p.chosen(local)
	}
	p.chains[name] = c
	return name
}

// outside is the chain for packets to external addresses.
func (p *portRules) outside() string {
	name := p.chainName("external-")
	c := chain{kind: outside, cluster: p.own(false), local: p.port.externalLocal}
	if c.local && len(p.machine.addresses) > 0 {
		c.machine = p.setOf(p.machine.addresses)
	}
	if c.local && len(p.pods) > 0 {
		c.pods = p.setOf(p.pods)
	}
	if c.local && len(p.ends.local) > 0 {
		c.near = p.own(true)
	}
	p.chains[name] = c
	return name
}

// put adds an element. A Service may list an address twice; its better claim counts.
func (p *portRules) put(of set, key, value string, r rank) {
	e := element{of, key}
	if _, twice := p.elements[e]; twice && p.rank[e] >= r {
		return
	}
	p.elements[e] = value
	if r != 0 {
		p.rank[e] = r
	}
}

// address is a key: an address, the port's protocol, a port.
func (p *portRules) address(a netip.Addr, port uint16) string {
	return fields(a.AsSlice(), []byte{protocols[p.port.protocol]}, binary.BigEndian.AppendUint16(nil, port))
}

// parse is the reverse of address.
func parse(key string) (at netip.AddrPort, protocol uint8) {
	n := len(key) - 8 // the two fields after it
	a, _ := netip.AddrFromSlice([]byte(key[:n]))
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16([]byte(key[n+4:]))), key[n]
}

// fields joins the fields of a key or value: each begins at a multiple of four bytes.
func fields(all ...[]byte) string {
	var b []byte
	for _, f := range all {
		b = append(b, f...)
		for len(b)%4 != 0 {
			b = append(b, 0)
		}
	}
	return string(b)
}

// chainName is unique and no longer than the kernel allows, as a hash of the whole name is part of it.
func (p *portRules) chainName(prefix string) string {
	const longest = 120 // the kernel's limit is 127
	name := fmt.Sprintf("%s/%s/%s", p.port.service, strings.ToLower(string(p.port.protocol)), p.port.name)
	if p.port.name == "" {
		name += fmt.Sprint(p.port.port)
	}
	name = prefix + hash(fmt.Sprintf("%s/%s/%s/%d", p.port.service, p.port.protocol, p.port.name, p.port.port))[:8] +
		"-" + name
	if len(name) > longest {
		name = name[:longest-3] + "..."
	}
	return name
}

// hash is of 26 characters that names may have.
func hash(text string) string {
	h := sha256.Sum256([]byte(text))
	return base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(h[:16])
}
