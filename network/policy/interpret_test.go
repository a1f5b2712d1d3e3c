package policy

import (
	"fmt"
	"maps"
	"net/netip"
)

// The interpreter does to a flow what the kernel does to the first packet of a connection.

// allows runs a flow through the base chains.
func (r *Ruleset) allows(f Flow) bool {
	for _, h := range Hooks {
		if h.Input != f.ToServer {
			continue
		}
		if verdict, final := r.run(h.Chain, f, 0); final && verdict == Drop {
			return false
		}
	}
	return true
}

// run returns a chain's verdict; final is false where it has none.
func (r *Ruleset) run(chain string, f Flow, depth int) (v Verdict, final bool) {
	rules, ok := r.Chains[chain]
	if !ok || depth > 15 {
		panic("no chain " + chain)
	}
	for _, rule := range rules {
		if !r.matches(&rule, f) {
			continue
		}
		switch {
		case rule.BySource != "" || rule.ByDestination != "":
			name, address := rule.BySource, f.Source
			if rule.ByDestination != "" {
				name, address = rule.ByDestination, f.Destination
			}
			if to, ok := r.Sets[name].Elements[Element{First: address}]; ok {
				return r.run(to, f, depth)
			}
		case rule.Verdict == Jump:
			if v, final := r.run(rule.Chain, f, depth+1); final {
				return v, true
			}
		default:
			return rule.Verdict, true
		}
	}
	return Accept, false
}

func (r *Ruleset) matches(rule *Rule, f Flow) bool {
	if rule.Established {
		return false
	}
	if rule.Source != "" && !r.Sets[rule.Source].holds(f.Source) ||
		rule.Destination != "" && !r.Sets[rule.Destination].holds(f.Destination) {
		return false
	}
	if rule.Selves != "" {
		if _, in := r.Sets[rule.Selves].Elements[Element{First: f.Source}]; !in || f.Source != f.Destination {
			return false
		}
	}
	if rule.Protocol != "" && rule.Protocol != f.Protocol {
		return false
	}
	if rule.Ports != (PortRange{}) && (f.Port < rule.Ports.First || f.Port > rule.Ports.Last) {
		return false
	}
	if rule.PortSet != "" && !r.Sets[rule.PortSet].holdsPort(f.Port) {
		return false
	}
	if rule.Endpoints != "" {
		if _, in := r.Sets[rule.Endpoints].Elements[Element{First: f.Destination, Port: f.Port}]; !in {
			return false
		}
	}
	return true
}

func (s *Set) holds(a netip.Addr) bool {
	if a.Is4() == s.V6 {
		return false
	}
	if s.Kind == Addresses {
		_, in := s.Elements[Element{First: a}]
		return in
	}
	for e := range s.Elements {
		if !a.Less(e.First) && !e.Last.Less(a) {
			return true
		}
	}
	return false
}

func (s *Set) holdsPort(p uint16) bool {
	for e := range s.Elements {
		if e.Port <= p && p <= e.LastPort {
			return true
		}
	}
	return false
}

// mirror is a kernel that keeps what it is given, and refuses what the kernel would.
type mirror struct {
	Ruleset
	refuse func(r *Ruleset) error // may be nil
	writes int
}

func (m *mirror) Close() {}

func (m *mirror) Replace(r *Ruleset) error {
	if m.refuse != nil {
		if err := m.refuse(r); err != nil {
			return err
		}
	}
	next := Ruleset{Sets: map[string]*Set{}, Chains: maps.Clone(r.Chains)}
	for name, s := range r.Sets {
		next.Sets[name] = &Set{Name: name, Kind: s.Kind, V6: s.V6, Elements: maps.Clone(s.Elements)}
	}
	if err := next.check(); err != nil {
		return err
	}
	m.Ruleset = next
	m.writes++
	return nil
}

func (m *mirror) Apply(c *Changes) error {
	next := Ruleset{Sets: map[string]*Set{}, Chains: maps.Clone(m.Chains)}
	for name, s := range m.Sets {
		next.Sets[name] = &Set{Name: name, Kind: s.Kind, V6: s.V6, Elements: maps.Clone(s.Elements)}
	}
	for _, s := range c.NewSets {
		if next.Sets[s.Name] != nil {
			return fmt.Errorf("set %s is there", s.Name)
		}
		next.Sets[s.Name] = &Set{Name: s.Name, Kind: s.Kind, V6: s.V6, Elements: maps.Clone(s.Elements)}
	}
	for _, e := range c.Elements {
		if err := next.change(e); err != nil {
			return err
		}
	}
	maps.Copy(next.Chains, c.Chains)
	for _, name := range c.OldChains {
		if _, there := next.Chains[name]; !there {
			return fmt.Errorf("no chain %s", name)
		}
		delete(next.Chains, name)
	}
	for _, name := range c.OldSets {
		if next.Sets[name] == nil {
			return fmt.Errorf("no set %s", name)
		}
		delete(next.Sets, name)
	}
	if err := next.check(); err != nil {
		return err
	}
	if m.refuse != nil {
		if err := m.refuse(&next); err != nil {
			return err
		}
	}
	m.Ruleset = next
	m.writes++
	return nil
}

func (r *Ruleset) change(c ElementChanges) error {
	set := r.Sets[c.Set.Name]
	if set == nil {
		return fmt.Errorf("no set %s", c.Set.Name)
	}
	for _, e := range c.Gone {
		if _, in := set.Elements[e]; !in {
			return fmt.Errorf("%v is not in %s", e, set.Name)
		}
		delete(set.Elements, e)
	}
	for _, e := range c.Come {
		if _, in := set.Elements[e]; in {
			return fmt.Errorf("%v is in %s", e, set.Name)
		}
		set.Elements[e] = c.Set.Elements[e]
	}
	return nil
}

// check reports references to what is not there, and chains and sets that nothing refers to.
func (r *Ruleset) check() error {
	chains, sets := map[string]bool{}, map[string]bool{}
	for _, h := range Hooks {
		chains[h.Chain] = true
	}
	for _, s := range r.Sets {
		for e, to := range s.Elements {
			if e.First.IsValid() && e.First.Is4() == s.V6 {
				return fmt.Errorf("%v is in %s", e, s.Name)
			}
			if s.Kind == Verdicts {
				chains[to] = true
			}
		}
	}
	for _, rules := range r.Chains {
		for _, rule := range rules {
			chains[rule.Chain] = true
			for _, name := range []string{rule.Source, rule.Destination, rule.Selves, rule.PortSet, rule.Endpoints,
				rule.BySource, rule.ByDestination} {
				sets[name] = true
			}
		}
	}
	delete(chains, "")
	delete(sets, "")
	for name := range chains {
		if _, there := r.Chains[name]; !there {
			return fmt.Errorf("there is no chain %s", name)
		}
	}
	for name := range sets {
		if r.Sets[name] == nil {
			return fmt.Errorf("there is no set %s", name)
		}
	}
	for name := range r.Chains {
		if !chains[name] {
			return fmt.Errorf("nothing leads to the chain %s", name)
		}
	}
	for name := range r.Sets {
		if !sets[name] {
			return fmt.Errorf("nothing refers to the set %s", name)
		}
	}
	return nil
}
