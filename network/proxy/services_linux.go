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

// rulebook is all that the proxy knows of the Services, and the tables that it makes of it. It is not safe for
// concurrent use.
type rulebook struct {
	namespace   *os.File
	reserved    []netip.AddrPort // at which no external address leads elsewhere, besides the API servers'
	place       place
	nodeIPs     []netip.Addr // at which node ports are served
	nodeSources []netip.Addr // all addresses of the Nodes
	tables      [families]*table
	compilers   [families]compiler
	services    map[types.NamespacedName]*service
	nodes       [families]*rules // the rules that no Service owns

	forwarding forwarding // what the machine passes on

	unheard [2]int // how many Services have policy Local, but no endpoint here: inside, outside

	udp    map[types.NamespacedName]bool             // Services with ports of UDP
	stale  [families]flows                           // UDP flows to look through after the next commit
	forget [families]map[string]types.NamespacedName // maps of clients to look through after it, and their Services
}

// service is a Service as the tables have it.
type service struct {
	owner   owner
	rules   [families]*rules
	udp     [families]flows
	checked uint16  // its node port for health checks
	local   int     // how many local endpoints are ready
	unheard [2]bool // it has endpoints, but for policy Local none here: inside, outside
	exposed bool    // it has external addresses
}

// openRulebook opens the tables of a namespace. The machine is nil where none passes packets on.
func openRulebook(namespace *os.File, machine Machine) (*rulebook, error) {
	b := &rulebook{namespace: namespace, services: map[types.NamespacedName]*service{},
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
		b.stale[f], b.forget[f] = flows{}, map[string]types.NamespacedName{}
	}
	return b, nil
}

func (b *rulebook) close() {
	for _, t := range b.tables {
		if t != nil {
			t.close()
		}
	}
}

// setNodes sets where the proxy is: the Nodes, their addresses with node ports, and all of their addresses. If it
// reports a change, all Services have to be updated.
func (b *rulebook) setNodes(p place, nodePorts, nodeSources []netip.Addr) (changed bool) {
	changed = !maps.Equal(p.nodes, b.place.nodes) || !maps.Equal(p.zones, b.place.zones) ||
		!slices.Equal(p.pods, b.place.pods) || !slices.Equal(nodeSources, b.nodeSources)
	b.place, b.nodeIPs, b.nodeSources = p, nodePorts, nodeSources
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
		c.pods = slices.DeleteFunc(slices.Clone(p.pods), func(r netip.Prefix) bool { return !f.has(r.Addr()) })
		if b.forwarding.machine != nil {
			changed = c.machine.setSources(b.forwarding.sources(f), c.nodeSources) || changed
		}
	}
	return changed
}

// setPolicy sets what the rules of all Services depend on.
func (b *rulebook) setPolicy(f family, p policy) {
	t := b.tables[f]
	same := t.policy.masqueradeAll == p.masqueradeAll && t.policy.clusterCIDR == p.clusterCIDR &&
		slices.Equal(t.policy.serviceCIDRs, p.serviceCIDRs)
	if t.policy = p; !same {
		t.known = false
		b.compilers[f].machine.services = p.serviceCIDRs
		b.forwarding.outdated, b.forwarding.dirty = true, true
	}
}

// update makes a Service's rules what its object and its slices say; nil is a Service that is gone.
func (b *rulebook) update(name types.NamespacedName, s *corev1.Service, slices []*discoveryv1.EndpointSlice) {
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
			all := b.place.endpointsOf(slices, ports[i].name, ports[i].protocol)
			all = only(all, func(e endpoint) bool { return f.has(e.address.Addr()) })
			all = all[:min(len(all), maxElements/len(ports))]
			ends[i] = choose(all, &ports[i])
			for _, e := range all {
				if e.local && e.ready {
					ready[e.address.Addr()] = true
				}
			}
			now.unheard[0] = now.unheard[0] || ports[i].internalLocal && ends[i].exists && len(ends[i].local) == 0
			now.unheard[1] = now.unheard[1] || ports[i].externalLocal && ends[i].exists && len(ends[i].local) == 0
		}
		now.rules[f], now.udp[f] = b.compilers[f].ports(ports, ends), b.compilers[f].udpFlows(ports, ends)
		now.exposed = now.exposed || len(ports) > 0 && len(ports[0].externals)+len(ports[0].balancers) > 0
	}
	now.local = len(ready)
	b.replace(name, old, now)
}

// replace puts a Service in the place of what it was; nil if it is gone.
func (b *rulebook) replace(name types.NamespacedName, old, now *service) {
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
	for i := range b.unheard {
		if old.unheard[i] {
			b.unheard[i]--
		}
		if now.unheard[i] {
			b.unheard[i]++
		}
	}
	for f := range families {
		b.note(name, f, old, now)
		if len(now.udp[f]) > 0 {
			b.udp[name] = true
		}
		b.tables[f].state.succeed(&old.owner, &now.owner, old.rules[f], now.rules[f])
		b.forwarding.replace(f, old, now)
	}
}

// note notes what the commit does not end by itself: UDP flows to what was no endpoint, or is none any more, and
// clients that are remembered with such an endpoint.
func (b *rulebook) note(service types.NamespacedName, f family, old, now *service) {
	for to, ends := range old.udp[f] {
		if !slices.Equal(ends, now.udp[f][to]) {
			b.stale[f][to] = nil
		}
	}
	for to, ends := range now.udp[f] {
		if _, there := old.udp[f][to]; !there || !slices.Equal(ends, old.udp[f][to]) {
			b.stale[f][to] = nil
		}
	}
	if old.rules[f] == nil {
		return
	}
	if now.rules[f] == nil {
		for name := range old.rules[f].affinity {
			delete(b.forget[f], name)
		}
		return
	}
	for name, ends := range old.rules[f].affinity {
		left, stays := now.rules[f].affinity[name]
		if !stays {
			delete(b.forget[f], name)
		} else if slices.ContainsFunc(ends, func(e netip.AddrPort) bool { return !slices.Contains(left, e) }) {
			b.forget[f][name] = service
		}
	}
}

// commit has the kernel make all changes, and ends what is left of the state before.
func (b *rulebook) commit(f family) error {
	t := b.tables[f]
	if !t.known {
		b.lookAtAll(f)
	}
	return t.commit()
}

// lookAtAll has the next commit look through all flows and clients, as their state is not known.
func (b *rulebook) lookAtAll(f family) {
	for name := range b.udp {
		for to := range b.services[name].udp[f] {
			b.stale[f][to] = nil
		}
	}
	for service, s := range b.services {
		if r := s.rules[f]; r != nil {
			for name := range r.affinity {
				b.forget[f][name] = service
			}
		}
	}
}

// distrust has the next commits compare the tables with the kernel's, and what the machine passes on.
func (b *rulebook) distrust() {
	for _, t := range b.tables {
		t.known = false
	}
	b.forwarding.joined, b.forwarding.dirty = false, true
}

// health is a Service's health check node port, 0 for none, and how many of its local endpoints are ready.
func (b *rulebook) health(name types.NamespacedName) (port uint16, local int) {
	if s := b.services[name]; s != nil {
		return s.checked, s.local
	}
	return 0, 0
}

// withoutLocal is how many Services have policy Local inside and outside, and endpoints, but none here.
func (b *rulebook) withoutLocal() (inside, outside int) { return b.unheard[0], b.unheard[1] }

// unsettled reports whether settle has something to do.
func (b *rulebook) unsettled(f family) bool { return len(b.stale[f])+len(b.forget[f]) > 0 }

// settle ends UDP flows and memories of clients that lead to what is no endpoint, after a commit. What fails is tried
// again by the next call.
func (b *rulebook) settle(f family) (deleted int, err error) {
	for name := range b.forget[f] {
		if problem := b.forgetClients(f, name); problem != nil {
			err = errors.Join(err, problem)
			continue
		}
		delete(b.forget[f], name)
	}
	if len(b.stale[f]) == 0 {
		return 0, err
	}
	deleted, problem := b.deleteFlows(f)
	if problem == nil {
		clear(b.stale[f])
	}
	return deleted, errors.Join(err, problem)
}
