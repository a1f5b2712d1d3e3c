package policy

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Compile returns the rules that enforce a cluster's policies for the pods of c.Nodes.
func Compile(c *Cluster) *Ruleset {
	compiled := newCompiler(c.Nodes)
	compiled.setMachine(c.NodeAddresses, c.Served)
	for _, n := range c.Namespaces {
		compiled.setNamespace(n)
	}
	for _, p := range c.Pods {
		compiled.setPod(p)
	}
	for _, p := range c.Policies {
		compiled.setPolicy(p)
	}
	compiled.settle()
	return &compiled.Ruleset
}

// compiler updates a ruleset with the changes of a cluster: each change of an object changes only the rules and
// elements that depend on it. Chains of pods are updated by settle. It is not safe for concurrent use.
type compiler struct {
	draft
	nodes      map[string]bool
	namespaces map[string]*namespace
	pods       map[types.NamespacedName]*pod
	claims     map[netip.Addr][]*pod // the pods with an address; the first one owns it
	policies   map[types.NamespacedName]*policy
	selectors  map[string]*selector
	scopes     map[string]*scope
	groups     [len(directions)]map[string]*group
	shared     map[string]*sharedSet
	endpoints  map[NamedPort]*endpoints // by name and protocol; the port is zero
	next       int                      // the number of the next set or chain

	moved  map[*pod]struct{}      // pods whose policies may have changed
	stale  map[*body]struct{}     // bodies to compile
	unused map[*body]struct{}     // bodies that may have no group anymore
	empty  map[*group]struct{}    // groups that may have no pods
	idle   map[*selector]struct{} // selectors that may have no users

	failing  map[*body]struct{}   // bodies that allow no traffic because of an error
	failed   []failure            // newly failing bodies, for the owner to log
	isolated [len(directions)]int // pods that a policy isolates
}

// failure is the reason why a policy allows no traffic in a direction.
type failure struct {
	policy    types.NamespacedName
	direction Direction
	err       error
}

// pod is a pod of the cluster with derived state.
type pod struct {
	Pod
	space *namespace
	local bool
	owned []netip.Addr // addresses that it owns: no pod precedes it there
	in    map[*selector]struct{}
	group [len(directions)]*group // nil if no policy isolates it
}

func newCompiler(nodes []string) *compiler {
	c := &compiler{
		draft: newDraft(), nodes: map[string]bool{}, namespaces: map[string]*namespace{},
		pods: map[types.NamespacedName]*pod{}, claims: map[netip.Addr][]*pod{},
		policies: map[types.NamespacedName]*policy{}, selectors: map[string]*selector{}, scopes: map[string]*scope{},
		shared: map[string]*sharedSet{}, endpoints: map[NamedPort]*endpoints{},
		moved: map[*pod]struct{}{}, stale: map[*body]struct{}{}, unused: map[*body]struct{}{},
		empty: map[*group]struct{}{}, idle: map[*selector]struct{}{}, failing: map[*body]struct{}{},
	}
	for _, n := range nodes {
		c.nodes[n] = true
	}
	for _, d := range directions {
		c.groups[d] = map[string]*group{}
	}
	return c
}

// number returns a number for the name of a set or chain.
func (c *compiler) number() int {
	c.next++
	return c.next
}

// setMachine sets the machine's own addresses, and the addresses of servers that are ordinary destinations.
func (c *compiler) setMachine(node, served []netip.Addr) {
	for name, addresses := range map[string][]netip.Addr{"node": node, "served": served} {
		targets := map[Element]bool{}
		for _, a := range addresses {
			targets[Element{First: a.Unmap().WithZone("")}] = a.IsValid()
		}
		for _, family := range families {
			set := c.Sets[name+family]
			for e := range maps.Clone(set.Elements) {
				if !targets[e] {
					c.dropElement(set, e)
				}
			}
		}
		for e, valid := range targets {
			if valid {
				c.setElement(c.Sets[name+family(e.First)], e, "")
			}
		}
	}
}

// space returns a namespace, which need not exist in the API.
func (c *compiler) space(name string) *namespace {
	n := c.namespaces[name]
	if n == nil {
		n = &namespace{name: name, pods: map[*pod]struct{}{}, scopes: map[*scope]struct{}{}}
		c.namespaces[name] = n
	}
	return n
}

// forget drops a namespace that is not in use.
func (c *compiler) forget(n *namespace) {
	if !n.exists && len(n.pods) == 0 && n.policies == 0 && len(n.index) == 0 {
		delete(c.namespaces, n.name)
	}
}

func (c *compiler) setNamespace(s Namespace) bool {
	n := c.space(s.Name)
	if n.exists && maps.Equal(n.labels, s.Labels) {
		return false
	}
	n.labels, n.exists = s.Labels, true
	c.rescope(n)
	return true
}

func (c *compiler) dropNamespace(name string) bool {
	n := c.namespaces[name]
	if n == nil {
		return false
	}
	n.exists = false
	c.rescope(n)
	c.forget(n)
	return true
}

// setPod adds or updates a pod, and reports whether it changed.
func (c *compiler) setPod(s Pod) bool {
	if old := c.pods[s.NamespacedName]; old != nil {
		if reflect.DeepEqual(old.Pod, s) {
			return false
		}
		c.dropPod(s.NamespacedName) // the draft does not count elements that are added back at once
	}
	p := &pod{Pod: s, space: c.space(s.Namespace), local: c.nodes[s.Node], in: map[*selector]struct{}{}}
	c.pods[s.NamespacedName] = p
	p.space.pods[p] = struct{}{}
	join := func(s *selector) { c.join(s, p) }
	p.space.matching(p.Labels, join)
	for scope := range p.space.scopes {
		scope.matching(p.Labels, join)
	}
	for _, a := range p.Addresses {
		c.claim(p, a)
	}
	return true
}

// dropPod removes a pod, and reports whether it existed.
func (c *compiler) dropPod(name types.NamespacedName) bool {
	p := c.pods[name]
	if p == nil {
		return false
	}
	for _, a := range p.Addresses {
		c.unclaim(p, a)
	}
	for s := range maps.Clone(p.in) {
		c.leave(s, p)
	}
	for _, d := range directions {
		c.enterGroup(p, d, nil)
	}
	delete(c.moved, p)
	delete(c.pods, name)
	delete(p.space.pods, p)
	c.forget(p.space)
	return true
}

// claim makes a pod the owner of an address, or queues it behind a pod of this machine or a younger one.
func (c *compiler) claim(p *pod, a netip.Addr) {
	all := c.claims[a]
	index := 0
	for index < len(all) && all[index].precedes(&p.Pod, c.nodes) {
		index++
	}
	c.claims[a] = slices.Insert(all, index, p)
	if index > 0 {
		return
	}
	if len(all) > 0 {
		c.disown(c.claims[a][1], a)
	}
	c.own(p, a)
}

func (c *compiler) unclaim(p *pod, a netip.Addr) {
	index := slices.Index(c.claims[a], p)
	left := slices.Delete(c.claims[a], index, index+1)
	if c.claims[a] = left; len(left) == 0 {
		delete(c.claims, a)
	}
	if index > 0 {
		return
	}
	c.disown(p, a)
	if len(left) > 0 {
		c.own(left[0], a)
	}
}

func (c *compiler) own(p *pod, a netip.Addr) {
	p.owned = append(p.owned, a)
	for s := range p.in {
		c.enter(s, a)
	}
	for _, port := range p.Ports {
		if e := c.endpoints[NamedPort{port.Name, port.Protocol, 0}]; e != nil {
			c.setElement(ofFamily(e.sets, a), Element{First: a, Port: port.Port}, "")
		}
	}
	c.regroup(p)
}

func (c *compiler) disown(p *pod, a netip.Addr) {
	p.owned = slices.DeleteFunc(p.owned, func(o netip.Addr) bool { return o == a })
	for s := range p.in {
		c.exit(s, a)
	}
	for _, port := range p.Ports {
		if e := c.endpoints[NamedPort{port.Name, port.Protocol, 0}]; e != nil {
			c.dropElement(ofFamily(e.sets, a), Element{First: a, Port: port.Port})
		}
	}
	for _, d := range directions {
		c.dropElement(c.Sets[d.String()+family(a)], Element{First: a})
	}
	c.dropElement(c.Sets["selves"+family(a)], Element{First: a})
	c.regroup(p)
}

// enter adds a member's address to a selector's sets, if the selector is a peer. exit removes it.
func (c *compiler) enter(s *selector, a netip.Addr) {
	if set := ofFamily(s.sets, a); set != nil {
		c.setElement(set, Element{First: a}, "")
	}
}

func (c *compiler) exit(s *selector, a netip.Addr) {
	if set := ofFamily(s.sets, a); set != nil {
		c.dropElement(set, Element{First: a})
	}
}

// endpoints are the addresses and ports with a port name.
type endpoints struct {
	users int
	sets  [2]*Set
}

// endpointsOf returns the endpoints of a name. The caller counts as a user from then on.
func (c *compiler) endpointsOf(name string, protocol corev1.Protocol) *endpoints {
	key := NamedPort{name, protocol, 0}
	e := c.endpoints[key]
	if e == nil {
		e = &endpoints{}
		c.endpoints[key] = e
		e.sets = c.addPair("ports", Endpoints, fmt.Sprintf("pods' ports %s of %s", name, protocol))
		for _, p := range c.pods {
			for _, port := range p.Ports {
				if port.Name != name || port.Protocol != protocol {
					continue
				}
				for _, a := range p.owned {
					c.setElement(ofFamily(e.sets, a), Element{First: a, Port: port.Port}, "")
				}
			}
		}
	}
	e.users++
	return e
}

// addPair adds a set for each family.
func (c *compiler) addPair(name string, kind Kind, comment string) (pair [2]*Set) {
	n := c.number()
	for i, family := range families {
		name := fmt.Sprintf("%s%s/%d", name, family, n)
		pair[i] = c.addSet(&Set{Name: name, Kind: kind, V6: i == 1, Comment: comment})
	}
	return pair
}

// setPolicy adds or updates a policy, and reports whether it changed.
func (c *compiler) setPolicy(s *networkingv1.NetworkPolicy) bool {
	name := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
	p := c.policies[name]
	if p == nil {
		p = &policy{name: name, id: c.number(), space: c.space(name.Namespace),
			revision: revisionOf(s)}
		for _, d := range directions {
			p.bodies[d] = &body{policy: p, direction: d, chain: p.chain(d)}
		}
		p.space.policies++
		c.policies[name] = p
	} else if p.revision = revisionOf(s); reflect.DeepEqual(p.spec, s.Spec) {
		return false
	}
	p.spec, p.refused = s.Spec, false
	p.isolates[Ingress], p.isolates[Egress] = isolates(&p.spec)
	for _, b := range p.bodies {
		if b.users > 0 {
			c.stale[b] = struct{}{}
		}
	}
	c.setSubject(p, c.acquire(p.space, nil, &p.spec.PodSelector))
	return true
}

func (c *compiler) dropPolicy(name types.NamespacedName) bool {
	p := c.policies[name]
	if p == nil {
		return false
	}
	c.setSubject(p, nil)
	delete(c.policies, name)
	p.space.policies--
	c.forget(p.space)
	return true
}

// setSubject sets the selector of a policy's pods, and schedules the pods of the old and the new one.
func (c *compiler) setSubject(p *policy, s *selector) {
	for _, subject := range []*selector{p.subject, s} {
		if subject != nil {
			for member := range subject.members {
				c.regroup(member)
			}
		}
	}
	if p.subject != nil {
		delete(p.subject.policies, p)
		c.idle[p.subject] = struct{}{}
	}
	if p.subject = s; s != nil {
		s.policies[p] = struct{}{}
	}
}
