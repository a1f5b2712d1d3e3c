package proxy

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Each port of a Service uses no more endpoints than this, as many as the numbers that tell those of one policy from
// those of the other leave room for. The rest is left out.
const maxEndpoints = 1 << 16

// maxElements bounds the endpoints of all ports of a Service together: an object of a given size could otherwise have
// the square of it in elements.
const maxElements = 1 << 18

// endpoint is one that a port of a Service may use.
type endpoint struct {
	address           netip.AddrPort
	ready             bool
	servingTerminate  bool // it still serves, but is about to go (KEP-1669)
	local             bool // its Node is one of ours
	unplaced          bool // its Node is unknown, so that it may be one of ours
	hasZones, inZone  bool // its hints, and whether they name the zone of one of our Nodes
	hasNodes, forNode bool // the same for Nodes
}

// place is where the proxy is: its Nodes, and the zones they are in.
type place struct {
	nodes, zones map[string]bool
	pods         []netip.Prefix // of the Nodes, in order; none of a family that has a cluster CIDR
}

// endpointsOf are the endpoints of one port of a Service in the slices of one family, in the order of their addresses.
// Where slices disagree about an address, an endpoint that is ready counts, as while an endpoint moves from one slice
// to another.
func (p *place) endpointsOf(slices []*discoveryv1.EndpointSlice, portName string, protocol corev1.Protocol) []endpoint {
	found := map[netip.AddrPort]endpoint{}
	for _, s := range slices {
		number := slicePort(s, portName, protocol)
		if number == 0 {
			continue
		}
		for i := range s.Endpoints {
			e, ok := p.endpoint(&s.Endpoints[i], number)
			if !ok || e.address.Addr().Is6() != (s.AddressType == discoveryv1.AddressTypeIPv6) {
				continue
			}
			if before, twice := found[e.address]; !twice || better(e, before) {
				found[e.address] = e
			}
		}
	}
	return sorted(found)
}

// better prefers the endpoint that takes more traffic; where both take the same, the choice does not depend on the
// order of the slices.
func better(e, than endpoint) bool {
	rank := func(e endpoint) int {
		n := 0
		for i, is := range []bool{e.hasNodes, e.forNode, e.hasZones, e.inZone, e.unplaced, e.local, e.servingTerminate,
			e.ready} {
			if is {
				n |= 1 << i
			}
		}
		return n
	}
	return rank(e) > rank(than)
}

func sorted(found map[netip.AddrPort]endpoint) []endpoint {
	all := make([]endpoint, 0, len(found))
	for _, e := range found {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b endpoint) int { return a.address.Compare(b.address) })
	return all[:min(len(all), maxEndpoints)]
}

// slicePort is the number of a port in a slice; 0 if it has none of the name and protocol.
func slicePort(s *discoveryv1.EndpointSlice, name string, protocol corev1.Protocol) uint16 {
	for _, p := range s.Ports {
		of := corev1.ProtocolTCP
		if p.Protocol != nil {
			of = *p.Protocol
		}
		its := ""
		if p.Name != nil {
			its = *p.Name
		}
		if its == name && of == protocol && p.Port != nil && *p.Port > 0 && *p.Port < 1<<16 {
			return uint16(*p.Port)
		}
	}
	return 0
}

// endpoint reads an endpoint of a slice. Addresses that lead to the node itself or to many are refused: whoever may
// write slices must not reach a node's own loopback services through a Service. (The API server refuses them too, for
// the slices that it validates.)
func (p *place) endpoint(of *discoveryv1.Endpoint, port uint16) (e endpoint, ok bool) {
	if len(of.Addresses) == 0 {
		return e, false
	}
	address, ok := parseAddress(of.Addresses[0]) // the API: clients use the first
	if !ok || address.IsLoopback() || address.IsUnspecified() || address.IsMulticast() ||
		address.IsLinkLocalUnicast() {
		return e, false
	}
	c := of.Conditions
	e.address = netip.AddrPortFrom(address, port)
	e.ready = c.Ready == nil || *c.Ready
	serving := c.Serving == nil && e.ready || c.Serving != nil && *c.Serving
	e.servingTerminate = serving && c.Terminating != nil && *c.Terminating
	e.unplaced = of.NodeName == nil
	e.local = of.NodeName != nil && p.nodes[*of.NodeName]
	if of.Hints == nil {
		return e, true
	}
	e.hasZones, e.hasNodes = len(of.Hints.ForZones) > 0, len(of.Hints.ForNodes) > 0
	e.inZone = slices.ContainsFunc(of.Hints.ForZones, func(z discoveryv1.ForZone) bool { return p.zones[z.Name] })
	e.forNode = slices.ContainsFunc(of.Hints.ForNodes, func(n discoveryv1.ForNode) bool { return p.nodes[n.Name] })
	return e, true
}

// backends are the endpoints that a port of a Service uses.
type backends struct {
	cluster []netip.AddrPort // of policy Cluster
	local   []netip.AddrPort // of policy Local
	exists  bool             // the cluster has endpoints that can be used, here or elsewhere
	hairpin []netip.Addr     // those among them that may connect to their own Service
	ready   int              // local and ready, whatever is used: health checks of node ports count them
}

// choose chooses endpoints by the rules that kube-proxy has: those that are ready and that topology hints allow, or, if
// none is ready, those that still serve although they terminate, for either policy on its own.
func choose(all []endpoint, needs *servicePort) (b backends) {
	ready := only(all, func(e endpoint) bool { return e.ready })
	terminating := only(all, func(e endpoint) bool { return !e.ready && e.servingTerminate })
	b.exists = len(ready) > 0 || len(terminating) > 0
	isLocal := func(e endpoint) bool { return e.local }
	b.ready = len(only(ready, isLocal))
	var used []endpoint
	if needs.usesCluster() {
		cluster := hinted(ready)
		if len(cluster) == 0 {
			cluster = terminating
		}
		used, b.cluster = cluster, addresses(cluster)
	}
	if needs.usesLocal() {
		local := only(ready, isLocal)
		if len(local) == 0 {
			local = only(terminating, isLocal)
		}
		used, b.local = append(slices.Clip(used), local...), addresses(local)
	}
	for _, e := range used {
		if e.local || e.unplaced {
			b.hairpin = append(b.hairpin, e.address.Addr())
		}
	}
	return b
}

// hinted are the ready endpoints that hints leave. Hints count only where every endpoint has them and some are for
// this place, so that a cluster in between two states has no Service without endpoints.
func hinted(ready []endpoint) []endpoint {
	all := func(is func(endpoint) bool) bool { return !slices.ContainsFunc(ready, not(is)) }
	modes := []struct{ has, here func(endpoint) bool }{
		{func(e endpoint) bool { return e.hasNodes }, func(e endpoint) bool { return e.forNode }},
		{func(e endpoint) bool { return e.hasZones }, func(e endpoint) bool { return e.inZone }},
	}
	for _, m := range modes {
		if all(m.has) && slices.ContainsFunc(ready, m.here) {
			return only(ready, m.here)
		}
	}
	return ready
}

func not(is func(endpoint) bool) func(endpoint) bool { return func(e endpoint) bool { return !is(e) } }

func only(all []endpoint, is func(endpoint) bool) []endpoint {
	var some []endpoint
	for _, e := range all {
		if is(e) {
			some = append(some, e)
		}
	}
	return some
}

func addresses(of []endpoint) []netip.AddrPort {
	all := make([]netip.AddrPort, len(of))
	for i, e := range of {
		all[i] = e.address
	}
	return all
}

// parseAddress reads an address as the kernel has it: without a zone, and an IPv4 address in IPv6 as itself. Leading
// zeros, which old objects may have, count as decimal digits.
func parseAddress(text string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(text)
	if err != nil {
		if a, err = netip.ParseAddr(withoutZeros(text)); err != nil {
			return a, false
		}
	}
	return a.Unmap().WithZone(""), true
}

func withoutZeros(text string) string {
	octets := strings.Split(text, ".")
	for i, o := range octets {
		if o = strings.TrimLeft(o, "0"); o == "" {
			o = "0"
		}
		octets[i] = o
	}
	return strings.Join(octets, ".")
}

// triggered is when the change happened that a slice reports, for the metric of how long it took to get here; zero
// where it is not known.
func triggered(s *discoveryv1.EndpointSlice) time.Time {
	at, err := time.Parse(time.RFC3339Nano, s.Annotations[corev1.EndpointsLastChangeTriggerTime])
	if err != nil {
		return time.Time{}
	}
	return at
}
