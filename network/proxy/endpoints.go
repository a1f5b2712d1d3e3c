package proxy

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// maxEndpoints limits the endpoints of a Service's port, so that their numbers distinguish the two policies. Further
// ones are left out.
const maxEndpoints = 1 << 16

// maxElements limits the endpoints of all ports of a Service together: otherwise the number of elements could be the
// square of an object's size.
const maxElements = 1 << 18

// endpoint is an endpoint that a port of a Service may use.
type endpoint struct {
	address           netip.AddrPort
	ready             bool
	servingTerminate  bool // it still serves while it terminates (KEP-1669)
	local             bool // its Node is one of ours
	unknownNode       bool // its Node is unknown, so it may be one of ours
	hasZones, inZone  bool // it has hints for zones, and one for the zone of one of our Nodes
	hasNodes, forNode bool // the same for Nodes
}

// topology is the proxy's location: its Nodes and their zones.
type topology struct {
	nodes, zones map[string]bool
	pods         []netip.Prefix // the Nodes' pod ranges, in order; empty for a family with a cluster CIDR
}

// endpointsOf returns the endpoints of one port of a Service in the slices of one family, sorted by address. If slices
// disagree about an address, for example while an endpoint moves from one slice to another, a ready endpoint counts.
func (t *topology) endpointsOf(slices []*discoveryv1.EndpointSlice, portName string,
	protocol corev1.Protocol) []endpoint {
	found := map[netip.AddrPort]endpoint{}
	for _, s := range slices {
		number := slicePort(s, portName, protocol)
		if number == 0 {
			continue
		}
		for i := range s.Endpoints {
			e, ok := t.endpoint(&s.Endpoints[i], number)
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

// better reports whether an endpoint takes precedence over another one with the same address, because it takes more
// traffic. The result does not depend on the order of the slices.
func better(e, than endpoint) bool {
	rank := func(e endpoint) int {
		n := 0
		for i, set := range []bool{e.hasNodes, e.forNode, e.hasZones, e.inZone, e.unknownNode, e.local,
			e.servingTerminate, e.ready} {
			if set {
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

// slicePort returns the number of a port in a slice, or 0 if the slice has no port with the name and protocol.
func slicePort(s *discoveryv1.EndpointSlice, name string, protocol corev1.Protocol) uint16 {
	for _, p := range s.Ports {
		sliceProtocol := corev1.ProtocolTCP
		if p.Protocol != nil {
			sliceProtocol = *p.Protocol
		}
		sliceName := ""
		if p.Name != nil {
			sliceName = *p.Name
		}
		if sliceName == name && sliceProtocol == protocol && p.Port != nil && *p.Port > 0 && *p.Port < 1<<16 {
			return uint16(*p.Port)
		}
	}
	return 0
}

// endpoint converts an endpoint of a slice. It rejects addresses that lead to the node itself or to many hosts: a user
// with the right to write slices must not reach a node's loopback services through a Service. (The API server rejects
// them too, in slices that it validates.)
func (t *topology) endpoint(source *discoveryv1.Endpoint, port uint16) (e endpoint, ok bool) {
	if len(source.Addresses) == 0 {
		return e, false
	}
	address, ok := parseAddress(source.Addresses[0]) // clients use the first address, by the API
	if !ok || address.IsLoopback() || address.IsUnspecified() || address.IsMulticast() ||
		address.IsLinkLocalUnicast() {
		return e, false
	}
	c := source.Conditions
	e.address = netip.AddrPortFrom(address, port)
	e.ready = c.Ready == nil || *c.Ready
	serving := c.Serving == nil && e.ready || c.Serving != nil && *c.Serving
	e.servingTerminate = serving && c.Terminating != nil && *c.Terminating
	e.unknownNode = source.NodeName == nil
	e.local = source.NodeName != nil && t.nodes[*source.NodeName]
	if source.Hints == nil {
		return e, true
	}
	e.hasZones, e.hasNodes = len(source.Hints.ForZones) > 0, len(source.Hints.ForNodes) > 0
	e.inZone = slices.ContainsFunc(source.Hints.ForZones, func(z discoveryv1.ForZone) bool { return t.zones[z.Name] })
	e.forNode = slices.ContainsFunc(source.Hints.ForNodes, func(n discoveryv1.ForNode) bool { return t.nodes[n.Name] })
	return e, true
}

// backends are the endpoints that a port of a Service uses.
type backends struct {
	cluster []netip.AddrPort // of policy Cluster
	local   []netip.AddrPort // of policy Local
	exists  bool             // the cluster has usable endpoints, here or elsewhere
	hairpin []netip.Addr     // the endpoints among them that may connect to their own Service
	ready   int              // number of ready local ones, used or not, for health check node ports
}

// choose selects endpoints by the rules of kube-proxy, for either policy on its own: ready endpoints that topology
// hints allow. If none is ready, it selects terminating endpoints that still serve.
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
		if e.local || e.unknownNode {
			b.hairpin = append(b.hairpin, e.address.Addr())
		}
	}
	return b
}

// hinted returns the ready endpoints that hints allow. Hints count only if every endpoint has them and at least one is
// for this place, so that a cluster between two states has no Service without endpoints.
func hinted(ready []endpoint) []endpoint {
	all := func(matches func(endpoint) bool) bool { return !slices.ContainsFunc(ready, not(matches)) }
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

func not(matches func(endpoint) bool) func(endpoint) bool {
	return func(e endpoint) bool { return !matches(e) }
}

func only(all []endpoint, matches func(endpoint) bool) []endpoint {
	var some []endpoint
	for _, e := range all {
		if matches(e) {
			some = append(some, e)
		}
	}
	return some
}

func addresses(list []endpoint) []netip.AddrPort {
	all := make([]netip.AddrPort, len(list))
	for i, e := range list {
		all[i] = e.address
	}
	return all
}

// parseAddress parses an address and normalizes it like the kernel: without a zone, and an IPv4-mapped IPv6 address as
// IPv4. Leading zeros, which old objects may have, are decimal.
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

// triggered returns the time of the change that a slice reports, for the metric of programming latency. It is zero if
// unknown.
func triggered(s *discoveryv1.EndpointSlice) time.Time {
	trigger, err := time.Parse(time.RFC3339Nano, s.Annotations[corev1.EndpointsLastChangeTriggerTime])
	if err != nil {
		return time.Time{}
	}
	return trigger
}
