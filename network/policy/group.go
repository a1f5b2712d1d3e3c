package policy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// group is a distinct set of policies that isolate pods in one direction. Its chain evaluates the policies in turn, and
// drops packets that none of them allows. All pods that are selected by the same policies share the group.
type group struct {
	key    string
	chain  string
	bodies []*body
	pods   int
}

// maxPolicies limits the policies of a pod that are evaluated, since the kernel evaluates them one by one. Further
// policies isolate the pod but allow no traffic.
const maxPolicies = 1000

// regroup schedules a pod for settle, because its policies may have changed.
func (c *compiler) regroup(p *pod) {
	if p.local {
		c.moved[p] = struct{}{}
	}
}

// settle updates the chains of pods, policies and selectors after changes, and drops unused ones.
func (c *compiler) settle() {
	for p := range c.moved {
		for _, d := range directions {
			c.place(p, d)
		}
		for _, a := range p.owned {
			set, e := c.Sets["selves"+family(a)], Element{First: a}
			if p.group[Ingress] != nil || p.group[Egress] != nil {
				c.setElement(set, e, "")
			} else {
				c.dropElement(set, e)
			}
		}
	}
	clear(c.moved)
	for g := range c.empty {
		c.collectGroup(g)
	}
	clear(c.empty)
	for b := range c.unused {
		if b.users == 0 {
			c.dropBody(b)
		}
	}
	clear(c.unused)
	for len(c.stale) > 0 { // room that one body frees may admit another
		stale := make([]*body, 0, len(c.stale))
		for b := range c.stale {
			stale = append(stale, b)
		}
		clear(c.stale)
		slices.SortFunc(stale, func(a, b *body) int { return strings.Compare(a.chain, b.chain) })
		for _, b := range stale {
			c.compile(b)
		}
	}
	c.collect()
}

// place assigns a pod to the group of its policies.
func (c *compiler) place(p *pod, d Direction) {
	var bodies []*body
	if len(p.owned) > 0 {
		for s := range p.in {
			for policy := range s.policies {
				if policy.isolates[d] {
					bodies = append(bodies, policy.bodies[d])
				}
			}
		}
	}
	if len(bodies) == 0 {
		c.enterGroup(p, d, nil)
		for _, a := range p.owned {
			c.dropElement(c.Sets[d.String()+family(a)], Element{First: a})
		}
		return
	}
	g := c.groupOf(d, bodies)
	c.enterGroup(p, d, g)
	for _, a := range p.owned {
		c.setElement(c.Sets[d.String()+family(a)], Element{First: a}, g.chain)
	}
}

func (c *compiler) groupOf(d Direction, bodies []*body) *group {
	slices.SortFunc(bodies, func(a, b *body) int { return a.policy.id - b.policy.id })
	bodies = bodies[:min(len(bodies), maxPolicies)]
	var key []byte
	for _, b := range bodies {
		key = append(strconv.AppendInt(key, int64(b.policy.id), 36), ' ')
	}
	g := c.groups[d][string(key)]
	if g == nil {
		g = &group{key: string(key), chain: fmt.Sprintf("%s-pods/%d", d, c.number()), bodies: bodies}
		c.groups[d][g.key] = g
		rules := make([]Rule, 0, len(bodies)+1)
		for _, b := range bodies {
			c.use(b)
			rules = append(rules, Rule{Verdict: Jump, Chain: b.chain})
		}
		c.setChain(g.chain, append(rules, Rule{Verdict: Drop}))
	}
	return g
}

// enterGroup moves a pod from its group to another one, or to none if g is nil.
func (c *compiler) enterGroup(p *pod, d Direction, g *group) {
	old := p.group[d]
	if old == g {
		return
	}
	if old != nil {
		c.isolated[d]--
		if old.pods--; old.pods == 0 {
			c.empty[old] = struct{}{}
		}
	}
	if p.group[d] = g; g != nil {
		c.isolated[d]++
		g.pods++
	}
}

// collectGroup drops a group without pods.
func (c *compiler) collectGroup(g *group) {
	if g.pods > 0 {
		return
	}
	for _, b := range g.bodies {
		if b.users--; b.users == 0 {
			c.unused[b] = struct{}{}
		}
	}
	c.dropChain(g.chain)
	delete(c.groups[g.bodies[0].direction], g.key)
}

// use increments a body's user count. The first user schedules the body for compilation.
func (c *compiler) use(b *body) {
	if b.users++; b.users == 1 && !b.compiled {
		c.stale[b] = struct{}{}
	}
}
