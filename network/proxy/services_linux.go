package proxy

import (
	"errors"
	"maps"
	"net/netip"
	"os"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ruleset is the proxy's state of all Services, and the tables that it computes from it. It is not safe for concurrent
// use.
type ruleset struct {
	namespace   *os.File
	reserved    []netip.AddrPort // addresses that no external address takes over, besides the API servers'
	topology    topology
	nodeIPs     []netip.Addr // the addresses with node ports
	nodeSources []netip.Addr // all addresses of the Nodes
	tables      [families]*table
	compilers   [families]compiler
	services    map[types.NamespacedName]*service
	nodes       [families]*rules // the rules that belong to no Service

	forwarding forwarding // packets that the machine forwards

	noLocalEndpoints [2]int // number of Services with policy Local and no endpoint here: inside, outside

	udp          map[types.NamespacedName]bool             // Services with UDP ports
	staleFlows   [families]flows                           // UDP flows to check after the next commit
	staleClients [families]map[string]types.NamespacedName // affinity maps to check after it, with their Services
}

// service is a Service as the tables have it.
type service struct {
	owner            owner
	rules            [families]*rules
	udp              [families]flows
	checked          uint16  // its health check node port
	local            int     // number of ready local endpoints
	noLocalEndpoints [2]bool // it has endpoints, but none here for policy Local: inside, outside
	exposed          bool    // it has external addresses
}

// openRuleset opens the tables of a namespace. machine may be nil.
func openRuleset(namespace *os.File, machine Machine) (*ruleset, error) {
	b := &ruleset{namespace: namespace, services: map[types.NamespacedName]*service{},
		udp:        map[types.NamespacedName]bool{},
		forwarding: forwarding{machine: machine, exposed: map[types.NamespacedName]bool{}, dirty: true}}
	for f := range families {
		b.forwarding.addresses[f] = newState()
		t, err := openTable(f, namespace)
		if err != nil {
			b.close()
			return nil, err
		}
		b.tables[f], b.compilers[f].family = t, f
		b.staleFlows[f], b.staleClients[f] = flows{}, map[string]types.NamespacedName{}
	}
	return b, nil
}

func (b *ruleset) close() {
	for _, t := range b.tables {
		if t != nil {
			t.close()
		}
	}
}

// setNodes sets the proxy's topology, the addresses with node ports, and all addresses of the Nodes. If it reports a
// change, all Services must be updated.
func (b *ruleset) setNodes(t topology, nodePorts, nodeSources []netip.Addr) (changed bool) {
	changed = !maps.Equal(t.nodes, b.topology.nodes) || !maps.Equal(t.zones, b.topology.zones) ||
		!slices.Equal(t.pods, b.topology.pods) || !slices.Equal(nodeSources, b.nodeSources)
	b.topology, b.nodeIPs, b.nodeSources = t, nodePorts, nodeSources
	for f := range families {
		r := &rules{elements: map[element]string{}}
		for _, a := range nodePorts {
			if f.has(a) {
				r.elements[element{nodePortIPs, string(a.AsSlice())}] = ""
			}
		}
		b.tables[f].state.replace(&owner{}, b.nodes[f], r)
		b.nodes[f] = r
		c := &b.compilers[f]
		c.nodeSources = slices.DeleteFunc(slices.Clone(nodeSources), func(a netip.Addr) bool { return !f.has(a) })
		c.pods = slices.DeleteFunc(slices.Clone(t.pods), func(r netip.Prefix) bool { return !f.has(r.Addr()) })
		if b.forwarding.machine != nil {
			changed = c.machine.setSources(b.forwarding.sources(f), c.nodeSources) || changed
		}
	}
	return changed
}

// setPolicy sets the policy of all Services. If it changed, the next commit is a full sync.
func (b *ruleset) setPolicy(f family, p policy) {
	t := b.tables[f]
	same := t.policy.masqueradeAll == p.masqueradeAll && t.policy.clusterCIDR == p.clusterCIDR &&
		slices.Equal(t.policy.serviceCIDRs, p.serviceCIDRs)
	if t.policy = p; !same {
		t.synced = false
		b.compilers[f].machine.services = p.serviceCIDRs
		b.forwarding.outdated, b.forwarding.dirty = true, true
	}
}

// update computes a Service's rules from its object and its slices. s is nil for a deleted Service.
func (b *ruleset) update(name types.NamespacedName, s *corev1.Service, slices []*discoveryv1.EndpointSlice) {
	if name == apiServers {
		b.reserve(slices)
	}
	old := b.services[name]
	if old == nil {
		old = &service{}
	}
	if s == nil || !served(s) {
		b.replace(name, old, nil)
		return
	}
	now := &service{owner: owner{s.CreationTimestamp.Unix(), name.String()}, checked: checkedNodePort(s)}
	ready := map[netip.Addr]bool{}
	for f := range families {
		ports := portsOf(s, f)
		ends := make([]backends, len(ports))
		for i := range ports {
			all := b.topology.endpointsOf(slices, ports[i].name, ports[i].protocol)
			all = only(all, func(e endpoint) bool { return f.has(e.address.Addr()) })
			all = all[:min(len(all), maxElements/len(ports))]
			ends[i] = choose(all, &ports[i])
			for _, e := range all {
				if e.local && e.ready {
					ready[e.address.Addr()] = true
				}
			}
			noLocal := ends[i].exists && len(ends[i].local) == 0
			now.noLocalEndpoints[0] = now.noLocalEndpoints[0] || ports[i].internalLocal && noLocal
			now.noLocalEndpoints[1] = now.noLocalEndpoints[1] || ports[i].externalLocal && noLocal
		}
		now.rules[f], now.udp[f] = b.compilers[f].ports(ports, ends), b.compilers[f].udpFlows(ports, ends)
		now.exposed = now.exposed || len(ports) > 0 && len(ports[0].externals)+len(ports[0].balancers) > 0
	}
	now.local = len(ready)
	b.replace(name, old, now)
}

// replace replaces a Service. now is nil for a deleted one.
func (b *ruleset) replace(name types.NamespacedName, old, now *service) {
	delete(b.udp, name)
	delete(b.services, name)
	delete(b.forwarding.exposed, name)
	if now == nil {
		now = &service{owner: old.owner}
	} else {
		b.services[name] = now
	}
	if now.exposed {
		b.forwarding.exposed[name] = true
	}
	for i := range b.noLocalEndpoints {
		if old.noLocalEndpoints[i] {
			b.noLocalEndpoints[i]--
		}
		if now.noLocalEndpoints[i] {
			b.noLocalEndpoints[i]++
		}
	}
	for f := range families {
		b.markStale(name, f, old, now)
		if len(now.udp[f]) > 0 {
			b.udp[name] = true
		}
		b.tables[f].state.succeed(&old.owner, &now.owner, old.rules[f], now.rules[f])
		b.forwarding.replace(f, old, now)
	}
}

// markStale marks state that a commit does not end by itself: UDP flows with changed endpoints, and session affinity to
// former endpoints.
func (b *ruleset) markStale(service types.NamespacedName, f family, old, now *service) {
	for target, ends := range old.udp[f] {
		if !slices.Equal(ends, now.udp[f][target]) {
			b.staleFlows[f][target] = nil
		}
	}
	for target, ends := range now.udp[f] {
		if _, existed := old.udp[f][target]; !existed || !slices.Equal(ends, old.udp[f][target]) {
			b.staleFlows[f][target] = nil
		}
	}
	if old.rules[f] == nil {
		return
	}
	if now.rules[f] == nil {
		for name := range old.rules[f].affinity {
			delete(b.staleClients[f], name)
		}
		return
	}
	for name, ends := range old.rules[f].affinity {
		current, stays := now.rules[f].affinity[name]
		if !stays {
			delete(b.staleClients[f], name)
		} else if slices.ContainsFunc(ends, func(e netip.AddrPort) bool { return !slices.Contains(current, e) }) {
			b.staleClients[f][name] = service
		}
	}
}

// commit applies pending changes of a family in one transaction. cleanUpConntrack removes stale conntrack entries
// afterwards.
func (b *ruleset) commit(f family) error {
	t := b.tables[f]
	if !t.synced {
		b.markAllStale(f)
	}
	return t.commit()
}

// markAllStale makes the next cleanup check all flows and clients, because their state is unknown.
func (b *ruleset) markAllStale(f family) {
	for name := range b.udp {
		for target := range b.services[name].udp[f] {
			b.staleFlows[f][target] = nil
		}
	}
	for service, s := range b.services {
		if r := s.rules[f]; r != nil {
			for name := range r.affinity {
				b.staleClients[f][name] = service
			}
		}
	}
}

// forceFullSync makes the next commits compare the tables with the kernel's, and update the machine's forwarding.
func (b *ruleset) forceFullSync() {
	for _, t := range b.tables {
		t.synced = false
	}
	b.forwarding.joined, b.forwarding.dirty = false, true
}

// health returns a Service's health check node port, or 0, and its number of ready local endpoints.
func (b *ruleset) health(name types.NamespacedName) (port uint16, local int) {
	if s := b.services[name]; s != nil {
		return s.checked, s.local
	}
	return 0, 0
}

// withoutLocal returns the number of Services with policy Local inside and outside that have endpoints, but none here.
func (b *ruleset) withoutLocal() (inside, outside int) {
	return b.noLocalEndpoints[0], b.noLocalEndpoints[1]
}

// needsCleanup reports whether cleanUpConntrack has work.
func (b *ruleset) needsCleanup(f family) bool { return len(b.staleFlows[f])+len(b.staleClients[f]) > 0 }

// cleanUpConntrack deletes UDP flows and session affinity to former endpoints, after a commit. The next call repeats
// what fails.
func (b *ruleset) cleanUpConntrack(f family) (deleted int, err error) {
	for name := range b.staleClients[f] {
		if problem := b.deleteStaleClients(f, name); problem != nil {
			err = errors.Join(err, problem)
			continue
		}
		delete(b.staleClients[f], name)
	}
	if len(b.staleFlows[f]) == 0 {
		return 0, err
	}
	deleted, problem := b.deleteFlows(f)
	if problem == nil {
		clear(b.staleFlows[f])
	}
	return deleted, errors.Join(err, problem)
}
