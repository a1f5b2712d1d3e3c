package proxy

import (
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// policy is what the rules of all Services depend on.
type policy struct {
	masqueradeAll bool
	clusterCIDR   netip.Prefix   // of pods; zero where it is not known
	serviceCIDRs  []netip.Prefix // of cluster IPs; none holds another
}

// shape is a set as every table has it.
type shape struct {
	name  string
	key   []nftables.SetDatatype
	value []nftables.SetDatatype // nil for a set
}

// address stands for the type of addresses of the table's family.
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

// kernelSet is a set for a table. Its number tells sets of one transaction apart.
func (s set) kernelSet(t *nftables.Table, f family) *nftables.Set {
	shape := &shapes[s]
	k := &nftables.Set{Table: t, Name: shape.name, ID: uint32(s) + 1, KeyType: f.datatype(shape.key),
		Concatenation: len(shape.key) > 1}
	if shape.value != nil {
		k.IsMap, k.DataType = true, f.datatype(shape.value)
	}
	return k
}

// affinitySet is the map that remembers the clients of a Service. The kernel adds to it, up to its size; clients beyond
// it get an endpoint by chance.
func affinitySet(t *nftables.Table, f family, name string, id uint32) *nftables.Set {
	return &nftables.Set{Table: t, Name: name, ID: id, IsMap: true, Dynamic: true, HasTimeout: true, Size: 1 << 16,
		KeyType: f.datatype(port[:1]), DataType: f.datatype(end)}
}

// sourceSet is a set of sources. Intervals are an element for the first address and one for that after the last.
func sourceSet(t *nftables.Table, f family, name string, id uint32) *nftables.Set {
	return &nftables.Set{Table: t, Name: name, ID: id, Interval: true, KeyType: f.datatype(port[:1])}
}

// intervals are the elements for ranges in order, none of which holds another. Those that touch become one.
func intervals(ranges []netip.Prefix) []nftables.SetElement {
	var all []nftables.SetElement
	for i := 0; i < len(ranges); {
		first, end := ranges[i].Addr(), last(ranges[i]).Next()
		for i++; i < len(ranges) && ranges[i].Addr() == end; i++ {
			end = last(ranges[i]).Next()
		}
		all = append(all, nftables.SetElement{Key: first.AsSlice()})
		if end.IsValid() { // the last address of all has none after it
			all = append(all, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
		}
	}
	return all
}

// last is the last address of a range.
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

// fixed is a chain that every table has.
type fixed struct {
	name     string
	kind     nftables.ChainType // "" for one that is not on a hook
	hook     *nftables.ChainHook
	priority int32
	rules    func(family, *policy) []*rule
}

// Priorities as kube-proxy has them (the README in its folder): sources of load balancers are checked before a
// Service's address is replaced, and afterwards what nothing replaced.
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

// onHook is a chain that jumps to others. The kernel shows chains of type nat nothing but the first packet of a
// connection; others look for it themselves.
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

// masquerading replaces the source of packets that are marked, and of those that an endpoint sent to its own Service:
// it would otherwise receive them from itself, and answer to itself.
func masquerading(f family, _ *policy) []*rule {
	return []*rule{
		f.rule().saddr().daddr().in(hairpins.name()).masquerade(),
		f.rule().isMarked().setMark(^uint32(masqueradeMark), 0).masquerade(),
	}
}

// clusterIPsCheck answers for ports that a Service does not have, and drops packets to addresses that no Service has:
// they must not leave the cluster by a default route.
func clusterIPsCheck(f family, p *policy) []*rule {
	rules := []*rule{f.rule().daddr().in(clusterIPs.name()).goTo(verdictReject)}
	for _, r := range p.serviceCIDRs {
		if f.has(r.Addr()) {
			rules = append(rules, f.rule().daddr().within(r, expr.CmpOpEq).drop())
		}
	}
	return rules
}

// rules are those of a chain of Services.
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
	// A client that is known keeps its endpoint, and its time begins anew: the kernel leaves the value of an element
	// that exists as it is.
	client := f.rule().saddr()
	at := client.next
	return []*rule{
		client.servicePort(c).endpoint(at, c).remember(c.affinity, c.timeout, firstRegister, at),
		f.rule().saddr().mapped(firstRegister, c.affinity, firstRegister).dnat(firstRegister),
		choose,
	}
}

// outside receives packets to external addresses. With policy Cluster all are masqueraded, as replies must come back
// here. With policy Local they keep their source, except for those from this node; pods and the node are not outside,
// and reach all endpoints.
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

// kernelVerdict is the value of a verdict map.
func kernelVerdict(value string) *expr.Verdict {
	if value == verdictDrop {
		return &expr.Verdict{Kind: expr.VerdictDrop}
	}
	return &expr.Verdict{Kind: expr.VerdictGoto, Chain: value}
}
