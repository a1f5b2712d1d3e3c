package policy

import (
	"fmt"
	"maps"
)

// mirror is a kernel that stores its rules, and rejects invalid ones like the real kernel.
type mirror struct {
	Ruleset
	refuse func(r *Ruleset) error // may be nil
	writes int
}

func (m *mirror) Close() {}

func (m *mirror) End(func(Flow) bool) (int, error) { return 0, nil }

// allows evaluates the rules for a flow.
func (r *Ruleset) allows(f Flow) bool { return newJudge(r).allows(f) }

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

// check reports references to missing chains and sets, and chains and sets without references.
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
