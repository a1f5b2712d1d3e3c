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

// compiler computes the rules of Services in one family.
type compiler struct {
	family family
	// nodeSources are the addresses of our Nodes. They may reach a load balancer's address if its ranges contain one.
	nodeSources []netip.Addr
	// pods are the ranges of our Nodes' pods, which reach all endpoints even with policy Local. Empty if
	// policy.clusterCIDR covers them.
	pods []netip.Prefix
	// reserved are the addresses and ports of API servers. No external address may take them over.
	reserved map[netip.AddrPort]bool
	// machine describes how the machine around the namespace forwards packets; zero if it does not.
	machine passage
}

// ports returns the rules of all ports of a Service, with the endpoints that each uses.
func (c *compiler) ports(ports []servicePort, ends []backends) *rules {
	r := &rules{elements: map[element]string{}, chains: map[string]chain{}, affinity: map[string][]netip.AddrPort{},
		sources: map[string][]netip.Prefix{},
		rank:    map[element]rank{}}
	for i := range ports {
		(&portRules{rules: r, port: &ports[i], ends: &ends[i], compiler: c}).add()
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

// pool adds the numbered endpoints of a policy.
func (p *portRules) pool(own string, local bool) {
	for i, e := range p.chosen(local) {
		key := binary.NativeEndian.AppendUint32([]byte(own), base(local)+uint32(i))
		value := fields(e.Addr().AsSlice(), binary.BigEndian.AppendUint16(nil, e.Port()))
		p.put(endpoints, string(key), value, 0)
	}
}

// addExternal adds the rules from external addresses and node ports to the endpoints. For packets that the machine
// forwards, they match the stand-ins.
func (p *portRules) addExternal() {
	open := p.ends.exists && p.count(p.port.externalLocal) > 0
	target := ""
	if len(p.ends.cluster) > 0 {
		target = p.outside()
	}
	put := func(services, rejects set, key string, r rank) {
		if target != "" {
			p.put(services, key, target, r)
		}
		if !open {
			p.put(rejects, key, p.refusal(), r)
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

// unreserved returns the external addresses except addresses of an API server at this port.
func (p *portRules) unreserved(addresses []netip.Addr) []netip.Addr {
	if p.port.protocol != corev1.ProtocolTCP || len(p.reserved) == 0 {
		return addresses
	}
	return slices.DeleteFunc(slices.Clone(addresses), func(a netip.Addr) bool {
		return p.reserved[netip.AddrPortFrom(a, p.port.port)]
	})
}

// restrict returns the chain that allows only loadBalancerSourceRanges to reach the load balancer's addresses, or "" if
// all sources may. If the ranges contain an address of a Node, the Node may also use a balancer's address as its
// source, as it does if the address is on one of its devices, and so may the machine.
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

// setOf returns the name of the set of some ranges. All Services with the same ranges share it.
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

// refusal returns the verdict for packets without an endpoint: reject if the cluster has none, drop if there is one
// elsewhere, because a load balancer may then try another Node.
func (p *portRules) refusal() string {
	if p.ends.exists {
		return verdictDrop
	}
	return verdictReject
}

// chosen returns the endpoints of a policy.
func (p *portRules) chosen(local bool) []netip.AddrPort {
	if local {
		return p.ends.local
	}
	return p.ends.cluster
}

func (p *portRules) count(local bool) int { return len(p.chosen(local)) }

// inside returns the chain that chooses endpoints for packets to the cluster IP. Without affinity, all Services with
// the same number of endpoints share it.
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

// own returns the chain that chooses among the endpoints of this port, whatever the packet's destination is.
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

// outside returns the chain for packets to external addresses.
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

// put adds an element. If a Service lists an address twice, the claim with the higher rank counts.
func (p *portRules) put(s set, key, value string, r rank) {
	e := element{s, key}
	if _, twice := p.elements[e]; twice && p.rank[e] >= r {
		return
	}
	p.elements[e] = value
	if r != 0 {
		p.rank[e] = r
	}
}

// address encodes a key: an address, the port's protocol, a port.
func (p *portRules) address(a netip.Addr, port uint16) string {
	return fields(a.AsSlice(), []byte{protocols[p.port.protocol]}, binary.BigEndian.AppendUint16(nil, port))
}

// parse is the inverse of address.
func parse(key string) (target netip.AddrPort, protocol uint8) {
	n := len(key) - 8 // the two fields after the address
	a, _ := netip.AddrFromSlice([]byte(key[:n]))
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16([]byte(key[n+4:]))), key[n]
}

// fields joins the fields of a key or value. Each begins at a multiple of four bytes.
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

// chainName returns a name that is unique, because it contains a hash of the whole name, and within the kernel's limit.
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

// hash returns 26 characters that are allowed in names.
func hash(text string) string {
	h := sha256.Sum256([]byte(text))
	return base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(h[:16])
}
