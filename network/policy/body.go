package policy

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// policy is a NetworkPolicy.
type policy struct {
	name     types.NamespacedName
	revision uint64 // the resourceVersion of the object as last seen
	id       int
	space    *namespace
	spec     networkingv1.NetworkPolicySpec
	subject  *selector // selects its pods
	isolates [len(directions)]bool
	bodies   [len(directions)]*body
	refused  bool // by the kernel: it isolates but allows no traffic
}

// body is the part of a policy for one direction. It is compiled while pods of this machine use it.
type body struct {
	policy    *policy
	direction Direction
	chain     string
	users     int // number of groups
	compiled  bool
	err       error // why it allows no traffic
	parts
}

// parts are the sets, chains and selectors of a body.
type parts struct {
	chains    map[string][]Rule
	selectors []*selector
	sets      []*sharedSet
	endpoints []*endpointsUse
	cost      cost
}

type endpointsUse struct {
	name NamedPort
	*endpoints
}

// maxName limits the part of a policy's name in the names of its chains: the kernel limits these to 255 bytes.
const maxName = 200

// chain returns the name of a body's chain. A policy's name has no slash, so names are unique.
func (p *policy) chain(d Direction) string {
	name := d.String() + "/" + p.name.String()
	if len(name) > maxName {
		name = fmt.Sprintf("%s/p%d", name[:maxName], p.id)
	}
	return name
}

// Limits on the expansion of policies: their authors are users of a namespace, but memory and time are shared by all. A
// policy that exceeds a limit isolates the pods that it selects, and allows no traffic.
const (
	maxRules     = 4096    // of a policy in one direction, as kernel rules
	maxSelectors = 256     // of a policy's peers in one direction
	maxElements  = 1 << 16 // of a policy's sets of blocks and ports in one direction

	maxSpaceRules     = 1 << 16 // of all policies of a namespace
	maxSpaceSelectors = 2048
	maxSpaceElements  = 1 << 20 // including members of peers
)

var (
	errLarge   = errors.New("the policy has more rules, peers, blocks or ports than are enforced")
	errBudget  = errors.New("the policies of the namespace have more rules, peers, blocks or ports than are enforced")
	errRefused = errors.New("the kernel rejected the policy's rules")
)

// cost is the share of a body in its namespace's budget.
type cost struct{ rules, selectors, elements int }

func (c *cost) add(o cost) {
	c.rules, c.selectors, c.elements = c.rules+o.rules, c.selectors+o.selectors, c.elements+o.elements
}

func (c *cost) within(rules, selectors, elements int) bool {
	return c.rules <= rules && c.selectors <= selectors && c.elements <= elements
}

// budget is the total cost of a namespace's bodies, and the bodies that wait for room.
type budget struct {
	spent   cost
	waiting map[*body]struct{}
}

// compile writes a body's chains. It releases the earlier sets and chains last, so that shared ones are not
// recreated.
func (c *compiler) compile(b *body) {
	if b.users == 0 {
		return
	}
	old := b.parts
	if b.compiled {
		c.refund(b)
	}
	delete(b.policy.space.budget.waiting, b)
	b.parts, b.err = c.translate(b)
	if b.err == nil {
		spent := b.policy.space.budget.spent
		if spent.add(b.cost); !spent.within(maxSpaceRules, maxSpaceSelectors, maxSpaceElements) {
			b.err = errBudget
			if b.policy.space.budget.waiting == nil {
				b.policy.space.budget.waiting = map[*body]struct{}{}
			}
			b.policy.space.budget.waiting[b] = struct{}{}
		}
	}
	if b.err != nil {
		c.release(&b.parts)
		b.parts = parts{chains: map[string][]Rule{b.chain: nil}}
	}
	b.policy.space.budget.spent.add(b.cost)
	b.compiled = true
	c.report(b)
	for name := range old.chains {
		if _, still := b.chains[name]; !still {
			c.dropChain(name)
		}
	}
	for name, rules := range b.chains {
		c.setChain(name, rules)
	}
	c.release(&old)
}

// report records whether a body allows no traffic because of an error.
func (c *compiler) report(b *body) {
	if b.err == nil {
		delete(c.failing, b)
		return
	}
	c.failing[b] = struct{}{}
	c.failed = append(c.failed, failure{b.policy.name, b.direction, b.err})
}

// dropBody deletes the chains of a body that no pod uses anymore.
func (c *compiler) dropBody(b *body) {
	if !b.compiled {
		return
	}
	for name := range b.chains {
		c.dropChain(name)
	}
	c.refund(b)
	delete(b.policy.space.budget.waiting, b)
	c.release(&b.parts)
	b.parts, b.compiled, b.err = parts{}, false, nil
	delete(c.failing, b)
}

// refund returns a body's cost to its namespace's budget, and schedules bodies that wait for room.
func (c *compiler) refund(b *body) {
	budget := &b.policy.space.budget
	budget.spent.add(cost{-b.cost.rules, -b.cost.selectors, -b.cost.elements})
	if b.cost == (cost{}) {
		return
	}
	for other := range budget.waiting {
		c.stale[other] = struct{}{}
	}
}

// release ends a body's use of its parts.
func (c *compiler) release(p *parts) {
	for _, s := range p.selectors {
		if s.peers--; s.peers == 0 {
			c.idle[s] = struct{}{}
		}
	}
	for _, s := range p.sets {
		if s.users--; s.users == 0 {
			c.dropSet(s.Set)
			delete(c.shared, s.content)
		}
	}
	for _, e := range p.endpoints {
		if e.users--; e.users == 0 {
			c.dropSet(e.sets[0])
			c.dropSet(e.sets[1])
			delete(c.endpoints, e.name)
		}
	}
}

// translation is a body in the process of translation to rules.
type translation struct {
	*compiler
	*body
	parts
}

// translate returns the parts of a body. The caller must release them, even after an error.
func (c *compiler) translate(b *body) (parts, error) {
	t := &translation{compiler: c, body: b, parts: parts{chains: map[string][]Rule{b.chain: nil}}}
	if b.policy.refused {
		return t.parts, errRefused
	}
	for i, r := range rulesOf(&b.policy.spec, b.direction) {
		if err := t.rule(i, r); err != nil {
			return t.parts, err
		}
		if !t.parts.cost.within(maxRules, maxSelectors, maxElements) {
			return t.parts, errLarge
		}
	}
	for _, s := range t.parts.selectors {
		t.parts.cost.elements += len(s.members)
	}
	return t.parts, nil
}

// rule adds the i-th rule of a policy: one kernel rule for each combination of its peers and ports. If both have
// several, the peers' rules jump to a chain with the ports' rules.
func (t *translation) rule(i int, r rule) error {
	before := t.parts
	peers, err := t.peers(r.peers)
	if err != nil {
		return err
	}
	ports, err := t.ports(r.ports)
	if err != nil {
		return err
	}
	if len(peers) == 0 || len(ports) == 0 { // all are malformed: the rule allows no traffic
		t.release(&parts{selectors: t.parts.selectors[len(before.selectors):], sets: t.parts.sets[len(before.sets):],
			endpoints: t.parts.endpoints[len(before.endpoints):]})
		t.parts = before
		return nil
	}
	if len(peers) > 1 && len(ports) > 1 {
		name := fmt.Sprintf("%s/%d", t.body.chain, i)
		t.append(name, ports)
		ports = []Rule{{Verdict: Jump, Chain: name}}
	}
	var product []Rule
	for _, peer := range peers {
		for _, port := range ports {
			port.Source, port.Destination = peer.Source, peer.Destination
			product = append(product, port)
		}
	}
	t.append(t.body.chain, product)
	return nil
}

func (t *translation) append(chain string, rules []Rule) {
	t.parts.chains[chain] = append(t.parts.chains[chain], rules...)
	t.parts.cost.rules += len(rules)
}

// peers returns rules that match the peers of a rule. Without peers, one rule matches everything.
func (t *translation) peers(peers []networkingv1.NetworkPolicyPeer) (rules []Rule, err error) {
	if len(peers) == 0 {
		return []Rule{{}}, nil
	}
	var blocks []block
	seen := map[*selector]bool{}
	for _, p := range peers {
		switch {
		case p.IPBlock != nil:
			blocks = append(blocks, blocksOf(p.IPBlock)...)
		case p.PodSelector != nil || p.NamespaceSelector != nil:
			if t.parts.cost.selectors > maxSelectors {
				return nil, errLarge
			}
			if s := t.acquire(t.policy.space, p.NamespaceSelector, p.PodSelector); !seen[s] {
				seen[s] = true
				t.usePeer(s)
				rules = append(rules, t.from(s.sets[0]), t.from(s.sets[1]))
			}
		}
	}
	blocks = mergeBlocks(blocks)
	t.parts.cost.elements += len(blocks)
	if t.parts.cost.elements > maxElements {
		return nil, errLarge
	}
	for i, family := range families {
		var elements []Element
		for _, b := range blocks {
			if b.first.Is4() == (i == 0) {
				elements = append(elements, Element{First: b.first, Last: b.last})
			}
		}
		if len(elements) > 0 {
			rules = append(rules, t.from(t.share("blocks"+family, Blocks, i == 1, elements)))
		}
	}
	return rules, nil
}

// usePeer counts a body as a user of a selector's sets. The first user creates them.
func (t *translation) usePeer(s *selector) {
	t.parts.selectors = append(t.parts.selectors, s)
	t.parts.cost.selectors++
	s.peers++
	if s.sets[0] != nil {
		return
	}
	s.sets = t.addPair("pods", Addresses, s.key)
	for p := range s.members {
		for _, a := range p.owned {
			t.enter(s, a)
		}
	}
}

// from returns a rule that matches packets from or to a set, depending on the direction.
func (t *translation) from(s *Set) Rule {
	if t.direction == Ingress {
		return Rule{Source: s.Name}
	}
	return Rule{Destination: s.Name}
}

// ports returns rules that match the ports of a rule. Without ports, one rule matches everything.
func (t *translation) ports(ports []networkingv1.NetworkPolicyPort) (rules []Rule, err error) {
	if len(ports) == 0 {
		return []Rule{{}}, nil
	}
	ranges := map[corev1.Protocol][]PortRange{}
	seen := map[NamedPort]bool{}
	for i := range ports {
		protocol := protocolOf(ports[i].Protocol)
		if p := ports[i].Port; p != nil && p.Type == intstr.String {
			if name := (NamedPort{p.StrVal, protocol, 0}); !seen[name] {
				seen[name] = true
				if len(seen) > maxSelectors {
					return nil, errLarge
				}
				e := &endpointsUse{name, t.endpointsOf(p.StrVal, protocol)}
				t.parts.endpoints = append(t.parts.endpoints, e)
				t.parts.cost.selectors++
				rules = append(rules, Rule{Protocol: protocol, Endpoints: e.sets[0].Name},
					Rule{Protocol: protocol, Endpoints: e.sets[1].Name})
			}
		} else if r, ok := rangeOf(&ports[i]); ok {
			ranges[protocol] = append(ranges[protocol], r)
		}
	}
	for _, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP} {
		rules = append(rules, t.numbers(protocol, mergePorts(ranges[protocol]))...)
	}
	if t.parts.cost.elements > maxElements {
		return nil, errLarge
	}
	return rules, nil
}

// numbers returns rules that match ports of a protocol.
func (t *translation) numbers(protocol corev1.Protocol, ranges []PortRange) []Rule {
	switch {
	case len(ranges) == 0:
		return nil
	case ranges[0] == allPorts:
		return []Rule{{Protocol: protocol}}
	case len(ranges) == 1:
		return []Rule{{Protocol: protocol, Ports: ranges[0]}}
	}
	elements := make([]Element, len(ranges))
	for i, r := range ranges {
		elements[i] = Element{Port: r.First, LastPort: r.Last}
	}
	t.parts.cost.elements += len(elements)
	return []Rule{{Protocol: protocol, PortSet: t.share("numbers", Ports, false, elements).Name}}
}

// sharedSet is an immutable set that all bodies with the same content share.
type sharedSet struct {
	*Set
	content string
	users   int
}

func (t *translation) share(name string, kind Kind, v6 bool, elements []Element) *Set {
	content := fmt.Sprint(name, elements)
	s := t.shared[content]
	if s == nil {
		s = &sharedSet{content: content}
		s.Set = t.addSet(&Set{Name: fmt.Sprintf("%s/%d", name, t.number()), Kind: kind, V6: v6})
		for _, e := range elements {
			s.Elements[e] = "" // the elements of a new set are written together
		}
		t.shared[content] = s
	}
	s.users++
	t.parts.sets = append(t.parts.sets, s)
	return s.Set
}
