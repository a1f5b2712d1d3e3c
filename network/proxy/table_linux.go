package proxy

import (
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// policy has the settings that affect the rules of all Services.
type policy struct {
	masqueradeAll bool
	clusterCIDR   netip.Prefix   // of pods; zero if unknown
	serviceCIDRs  []netip.Prefix // of cluster IPs; none contains another
}

// shape describes a set of every table.
type shape struct {
	name  string
	key   []nftables.SetDatatype
	value []nftables.SetDatatype // nil for a set
}

// address stands for the address type of the table's family.
var address = nftables.SetDatatype{Name: "address"}

var shapes = [sets]shape{
	serviceIPs:          {name: "service-ips", key: port, value: verdict},
	serviceNodePorts:    {name: "service-nodeports", key: port[1:], value: verdict},
	endpoints:           {name: "endpoints", key: with(port, nftables.TypeMark), value: end},
	noEndpointServices:  {name: "no-endpoint-services", key: port, value: verdict},
	noEndpointNodePorts: {name: "no-endpoint-nodeports", key: port[1:], value: verdict},
	clusterIPs:          {name: "cluster-ips", key: port[:1]},
	nodePortIPs:         {name: "nodeport-ips", key: port[:1]},
	hairpins:            {name: "hairpins", key: []nftables.SetDatatype{address, address}},
	firewallIPs:         {name: "firewall-ips", key: port, value: verdict},
}

var (
	port    = []nftables.SetDatatype{address, nftables.TypeInetProto, nftables.TypeInetService}
	end     = []nftables.SetDatatype{address, nftables.TypeInetService}
	verdict = []nftables.SetDatatype{nftables.TypeVerdict}
)

func with(types []nftables.SetDatatype, more nftables.SetDatatype) []nftables.SetDatatype {
	return append(types[:len(types):len(types)], more)
}

func (s set) name() string { return shapes[s].name }

func (s set) verdicts() bool {
	v := shapes[s].value
	return len(v) == 1 && v[0] == nftables.TypeVerdict
}

// kernelSet returns the set for a table. Its ID distinguishes sets of one transaction.
func (s set) kernelSet(t *nftables.Table, f family) *nftables.Set {
	shape := &shapes[s]
	k := &nftables.Set{Table: t, Name: shape.name, ID: uint32(s) + 1, KeyType: f.datatype(shape.key),
		Concatenation: len(shape.key) > 1}
	if shape.value != nil {
		k.IsMap, k.DataType = true, f.datatype(shape.value)
	}
	return k
}

// affinitySet returns the map of a Service's session affinity. The kernel adds clients up to its size; further clients
// get a random endpoint.
func affinitySet(t *nftables.Table, f family, name string, id uint32) *nftables.Set {
	return &nftables.Set{Table: t, Name: name, ID: id, IsMap: true, Dynamic: true, HasTimeout: true, Size: 1 << 16,
		KeyType: f.datatype(port[:1]), DataType: f.datatype(end)}
}

// sourceSet returns a set of sources. An interval is an element for its first address and one for the address after its
// last.
func sourceSet(t *nftables.Table, f family, name string, id uint32) *nftables.Set {
	return &nftables.Set{Table: t, Name: name, ID: id, Interval: true, KeyType: f.datatype(port[:1])}
}

// intervals returns the elements for sorted ranges that do not overlap. Adjacent ranges become one interval.
func intervals(ranges []netip.Prefix) []nftables.SetElement {
	var all []nftables.SetElement
	for i := 0; i < len(ranges); {
		first, end := ranges[i].Addr(), last(ranges[i]).Next()
		for i++; i < len(ranges) && ranges[i].Addr() == end; i++ {
			end = last(ranges[i]).Next()
		}
		all = append(all, nftables.SetElement{Key: first.AsSlice()})
		if end.IsValid() { // the highest address has no successor
			all = append(all, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
		}
	}
	return all
}

// last returns the last address of a range.
func last(r netip.Prefix) netip.Addr {
	b := r.Addr().AsSlice()
	for i := r.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

func (f family) datatype(types []nftables.SetDatatype) nftables.SetDatatype {
	var all []nftables.SetDatatype
	for _, t := range types {
		if t == address {
			t = nftables.TypeIPAddr
			if f == ipv6 {
				t = nftables.TypeIP6Addr
			}
		}
		all = append(all, t)
	}
	if len(all) == 1 {
		return all[0]
	}
	return nftables.MustConcatSetType(all...)
}

// fixed is a chain of every table.
type fixed struct {
	name     string
	kind     nftables.ChainType // "" without a hook
	hook     *nftables.ChainHook
	priority int32
	rules    func(family, *policy) []*rule
}

// Priorities of kube-proxy (see the README in its folder): load balancer sources are checked before DNAT, and packets
// that DNAT did not translate afterwards.
const (
	beforeDNAT = -110
	atDNAT     = -100
	afterDNAT  = -90
	atSNAT     = 100
)

var chains = []fixed{
	{name: layout},
	{name: "mark-for-masquerade", rules: func(f family, _ *policy) []*rule {
		return []*rule{f.rule().setMark(^uint32(masqueradeMark), masqueradeMark)}
	}},
	{name: verdictReject, rules: func(f family, _ *policy) []*rule {
		return []*rule{f.rule().isTCP().reset(), f.rule().unreachable()}
	}},
	{name: "services", rules: services},
	{name: "masquerading", rules: masquerading},
	{name: "firewall-check", rules: func(f family, _ *policy) []*rule {
		return []*rule{f.rule().daddr().l4proto().dport().verdict(firewallIPs.name())}
	}},
	{name: "service-endpoints-check", rules: func(f family, _ *policy) []*rule {
		return []*rule{f.rule().daddr().l4proto().dport().verdict(noEndpointServices.name())}
	}},
	{name: "nodeport-endpoints-check", rules: func(f family, _ *policy) []*rule {
		return []*rule{f.rule().daddr().in(nodePortIPs.name()).l4proto().dport().verdict(noEndpointNodePorts.name())}
	}},
	{name: "cluster-ips-check", rules: clusterIPsCheck},
	onHook("filter-prerouting", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, beforeDNAT, "firewall-check"),
	onHook("filter-output", nftables.ChainTypeFilter, nftables.ChainHookOutput, beforeDNAT, "firewall-check"),
	onHook("nat-prerouting", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, atDNAT, "services"),
	onHook("nat-output", nftables.ChainTypeNAT, nftables.ChainHookOutput, atDNAT, "services"),
	onHook("filter-prerouting-post-dnat", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, afterDNAT,
		"service-endpoints-check", "nodeport-endpoints-check", "cluster-ips-check"),
	onHook("filter-output-post-dnat", nftables.ChainTypeFilter, nftables.ChainHookOutput, afterDNAT,
		"service-endpoints-check", "nodeport-endpoints-check", "cluster-ips-check"),
	onHook("nat-postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, atSNAT, "masquerading"),
}

// onHook returns a chain that jumps to others. The kernel passes only the first packet of a connection to chains of
// type nat; other chains check that themselves.
func onHook(name string, kind nftables.ChainType, hook *nftables.ChainHook, priority int32, to ...string) fixed {
	return fixed{name, kind, hook, priority, func(f family, _ *policy) []*rule {
		var rules []*rule
		for _, chain := range to {
			r := f.rule()
			if kind == nftables.ChainTypeFilter {
				r.isNew()
			}
			rules = append(rules, r.jump(chain))
		}
		return rules
	}}
}

func services(f family, p *policy) []*rule {
	var rules []*rule
	switch {
	case p.masqueradeAll:
		rules = append(rules, f.rule().daddr().in(clusterIPs.name()).jump("mark-for-masquerade"))
	case p.clusterCIDR.IsValid():
		rules = append(rules, f.rule().saddr().within(p.clusterCIDR, expr.CmpOpNeq).
			daddr().in(clusterIPs.name()).jump("mark-for-masquerade"))
	}
	return append(rules,
		f.rule().daddr().l4proto().dport().verdict(serviceIPs.name()),
		f.rule().daddr().in(nodePortIPs.name()).l4proto().dport().verdict(serviceNodePorts.name()))
}

// masquerading masquerades marked packets, and packets from an endpoint to its own Service: the endpoint would
// otherwise receive them from itself, and answer to itself.
func masquerading(f family, _ *policy) []*rule {
	return []*rule{
		f.rule().saddr().daddr().in(hairpins.name()).masquerade(),
		f.rule().isMarked().setMark(^uint32(masqueradeMark), 0).masquerade(),
	}
}

// clusterIPsCheck rejects packets to ports that a Service does not have, and drops packets to cluster IPs without a
// Service: they must not leave the cluster by a default route.
func clusterIPsCheck(f family, p *policy) []*rule {
	rules := []*rule{f.rule().daddr().in(clusterIPs.name()).goTo(verdictReject)}
	for _, r := range p.serviceCIDRs {
		if f.has(r.Addr()) {
			rules = append(rules, f.rule().daddr().within(r, expr.CmpOpEq).drop())
		}
	}
	return rules
}

// rules returns the rules of a chain of Services.
func (c *chain) rules(f family, p *policy) []*rule {
	switch c.kind {
	case firewall:
		return []*rule{f.rule().saddr().in(c.sources).accept(), f.rule().drop()}
	case outside:
		return c.outside(f, p)
	}
	choose := f.rule().servicePort(c).endpoint(firstRegister, c).dnat(firstRegister)
	if c.affinity == "" {
		return []*rule{choose}
	}
	// A known client keeps its endpoint, and its timeout restarts: the kernel does not change the value of an existing
	// element.
	client := f.rule().saddr()
	register := client.next
	return []*rule{
		client.servicePort(c).endpoint(register, c).remember(c.affinity, c.timeout, firstRegister, register),
		f.rule().saddr().mapped(firstRegister, c.affinity, firstRegister).dnat(firstRegister),
		choose,
	}
}

// outside returns the rules for packets to external addresses. With policy Cluster all packets are masqueraded, because
// replies must come back here. With policy Local packets keep their source, except packets from this node. Pods and the
// node itself are not outside, and reach all endpoints.
func (c *chain) outside(f family, p *policy) []*rule {
	if !c.local {
		return []*rule{f.rule().jump("mark-for-masquerade"), f.rule().goTo(c.cluster)}
	}
	var rules []*rule
	if c.machine != "" {
		rules = append(rules, f.rule().saddr().in(c.machine).jump("mark-for-masquerade"),
			f.rule().saddr().in(c.machine).goTo(c.cluster))
	}
	if c.pods != "" {
		rules = append(rules, f.rule().saddr().in(c.pods).goTo(c.cluster))
	}
	if p.clusterCIDR.IsValid() {
		rules = append(rules, f.rule().saddr().within(p.clusterCIDR, expr.CmpOpEq).goTo(c.cluster))
	}
	rules = append(rules, f.rule().fromHere().jump("mark-for-masquerade"), f.rule().fromHere().goTo(c.cluster))
	if c.near != "" {
		rules = append(rules, f.rule().goTo(c.near))
	}
	return rules
}

// kernelVerdict converts a value of a verdict map.
func kernelVerdict(value string) *expr.Verdict {
	if value == verdictDrop {
		return &expr.Verdict{Kind: expr.VerdictDrop}
	}
	return &expr.Verdict{Kind: expr.VerdictGoto, Chain: value}
}
