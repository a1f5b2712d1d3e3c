package policy

// Changes are the differences between two states of a ruleset: the content of a transaction.
type Changes struct {
	NewSets   []*Set            // with all their elements
	Elements  []ElementChanges  // of existing sets
	Chains    map[string][]Rule // new chains, and chains with other rules
	OldChains []string          // deleted chains
	OldSets   []string
}

// ElementChanges are the changes of one set. Deletions come first: a map element with a new value is in both lists.
type ElementChanges struct {
	Set        *Set
	Gone, Come []Element
}

// Empty reports whether there are no changes.
func (c *Changes) Empty() bool {
	return len(c.NewSets)+len(c.Elements)+len(c.Chains)+len(c.OldChains)+len(c.OldSets) == 0
}

// draft is a ruleset with a record of its changes since the last take.
type draft struct {
	Ruleset
	sets, chains map[string]bool // touched ones, with whether they existed before
	elements     map[string]*Set // sets with touched elements
}

func newDraft() draft {
	d := draft{Ruleset: newRuleset()}
	d.forget()
	return d
}

func (d *draft) forget() {
	for _, s := range d.elements {
		s.before = nil
	}
	d.sets, d.chains, d.elements = map[string]bool{}, map[string]bool{}, map[string]*Set{}
}

// touch records the first change of a name.
func touch(touched map[string]bool, name string, existed bool) {
	if _, seen := touched[name]; !seen {
		touched[name] = existed
	}
}

func (d *draft) addSet(s *Set) *Set {
	touch(d.sets, s.Name, false)
	return d.add(s)
}

func (d *draft) dropSet(s *Set) {
	touch(d.sets, s.Name, true)
	delete(d.Sets, s.Name)
	delete(d.elements, s.Name)
}

func (d *draft) setElement(s *Set, e Element, value string) {
	s.set(e, value)
	d.elements[s.Name] = s
}

func (d *draft) dropElement(s *Set, e Element) {
	s.drop(e)
	d.elements[s.Name] = s
}

func (d *draft) setChain(name string, rules []Rule) {
	_, existed := d.Chains[name]
	touch(d.chains, name, existed)
	d.Chains[name] = rules
}

func (d *draft) dropChain(name string) {
	touch(d.chains, name, true)
	delete(d.Chains, name)
}

// take returns the changes since the last call, and resets them.
func (d *draft) take() *Changes {
	c := &Changes{Chains: map[string][]Rule{}}
	for name, was := range d.sets {
		s, is := d.Sets[name]
		switch {
		case is && !was:
			c.NewSets = append(c.NewSets, s)
		case was && !is:
			c.OldSets = append(c.OldSets, name)
		}
	}
	for name, s := range d.elements {
		if was, touched := d.sets[name]; touched && !was {
			continue // new, reported with all its elements
		}
		if e := s.changes(); len(e.Gone)+len(e.Come) > 0 {
			c.Elements = append(c.Elements, e)
		}
	}
	for name, was := range d.chains {
		rules, is := d.Chains[name]
		switch {
		case is:
			c.Chains[name] = rules
		case was:
			c.OldChains = append(c.OldChains, name)
		}
	}
	d.forget()
	return c
}

func (s *Set) changes() ElementChanges {
	c := ElementChanges{Set: s}
	for e, was := range s.before {
		value, is := s.Elements[e]
		if is == was.existed && value == was.value {
			continue
		}
		if was.existed {
			c.Gone = append(c.Gone, e)
		}
		if is {
			c.Come = append(c.Come, e)
		}
	}
	return c
}
